"""Creates and connects the operator's components: API clients, lease, queues, reconcilers, event router, health and endpoints."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import aiohttp

from multistep.api.trial.trial import parse_trial
from multistep.app.background_tasks import BackgroundTasks, contained, repeat, retry_until_success
from multistep.app.endpoints import Endpoints, Health
from multistep.app.hold_lease import connect_lease, hold_lease, release_lease
from multistep.app.route_events import EventRouter
from multistep.errors import GatewayError
from multistep.kube.client import ClusterClient
from multistep.kube.lease import Lease
from multistep.kube.request_limit import RequestLimit
from multistep.kube.resources import PODS, SECRETS, SWEEPS, TRIALS
from multistep.kube.shard import Shard
from multistep.pods import pod_identity
from multistep.pods.pod_facts import pod_facts
from multistep.reconcile.admission.model_slots import LOAD_SECONDS, Gateway, ModelLoads
from multistep.reconcile.cluster.garbage_collector import OrphanRemoval
from multistep.reconcile.cluster.resync import Resync
from multistep.reconcile.models import model_gateway
from multistep.reconcile.queue.event_filter import EventFilter
from multistep.reconcile.queue.work_queue import WorkQueue
from multistep.reconcile.sweep.decide_at_start import SweepTasks
from multistep.reconcile.sweep.reconcile_sweep import Sweeps
from multistep.reconcile.trial.reconciler import Reconciler
from multistep.settings import Settings
from multistep.sources.load.remote_tasks import RemoteTasks
from multistep.store.bucket.object_store import Bucket
from multistep.store.bucket.upload_results import ResultsUploader
from multistep.store.history import History
from multistep.store.results_volume import ResultsVolume
from multistep.telemetry.export_traces import Traces, connect_receiver
from multistep.telemetry.metric_types import label_value
from multistep.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from multistep.store.evidence.signing import Signer


logger = logging.getLogger(__name__)

SWEEP_WORKERS = 4


class App:
    """The operator's components. ``end`` exits the process at once with an exit code."""

    def __init__(self, settings: Settings, *, end: Callable[[int], object] = os._exit) -> None:
        self.settings = settings
        self.shard = Shard(settings.shard, settings.namespaces)
        self.metrics = Metrics(settings)
        self.event_filter = EventFilter()
        self.lease: Lease
        self._client: ClusterClient
        self.queue: WorkQueue
        self.sweeps: Sweeps
        self.sweep_queue: WorkQueue
        self.resync: Resync
        self.events: EventRouter
        self.health: Health
        self.orphans: OrphanRemoval
        self.volume = ResultsVolume(
            settings.results_dir,
            unpack_threads=settings.unpack_threads,
            check=lambda: self.lease.check(),
            limits=settings.results_limits,
            checkpoint_limits=settings.checkpoint_limits,
        )
        bucket = _bucket(settings, lambda: self.lease.check())
        self.shipping = ResultsUploader(bucket, self.volume) if bucket else None
        self.history = History(self.volume, bucket)
        self.signer = _signer(settings)
        self._end = end
        self.reconciler: Reconciler
        self.models: model_gateway.ModelGateway | None = None
        self.traces: Traces | None = None
        self._stack = AsyncExitStack()
        self.tasks = BackgroundTasks()
        self._stopping = False

    async def start(self) -> None:
        """Connect to the cluster and become a standby. Reconciles start when the lease is acquired."""
        limit = RequestLimit(waited=self.metrics.throttled_seconds.inc)
        self._client = client = await self._stack.enter_async_context(
            await ClusterClient.connect(limit=limit, observe=self.metrics.requested, check=lambda: self.lease.check())
        )
        self.lease = await connect_lease(self._stack, self.settings, self.metrics)
        if self.settings.gateway_url:
            http = await self._stack.enter_async_context(aiohttp.ClientSession())
            settings = self.settings
            self.models = model_gateway.connect(
                http,
                settings.gateway_url,
                settings.gateway_admin_url,
                settings.gateway_secret_dir,
                get_sweep=partial(client.get, SWEEPS),
                get_secret=partial(client.get, SECRETS),
            )
        if (to := connect_receiver(self.settings.otlp_endpoint)) is not None:
            self.traces = Traces(to, self.metrics, requests=self.models.requests_of if self.models else None)
        self._compose(client)
        self._show(limit)
        await self._serve()
        self._start_tasks()

    def _compose(self, client: ClusterClient) -> None:
        settings, metrics = self.settings, self.metrics
        self.reconciler = Reconciler(
            client,
            self.volume,
            settings,
            metrics,
            wake=lambda key: self.queue.add(key),
            ended=self.traces.ended if self.traces else lambda _: None,
            changed=self.event_filter.changed,
            shipping=self.shipping,
            models=self.models,
            history=self.history,
            sign=self.signer.envelope if self.signer else None,
        )
        waited = metrics.queue_wait_seconds.observe
        self.queue = WorkQueue(self.reconciler.reconcile, workers=settings.reconcile_workers, waited=waited, failed=metrics.failed)
        limited_models = [limited.model for limited in settings.models]
        self.sweeps = Sweeps(client, metrics, self._sweep_tasks(client), self.shard, limited_models, self.models)
        self.sweep_queue = WorkQueue(self.sweeps.reconcile, workers=SWEEP_WORKERS, kind="sweep", failed=metrics.failed)
        self.events = EventRouter(
            self.lease,
            self.event_filter,
            metrics,
            queue=self.queue,
            sweep_queue=self.sweep_queue,
            reconciler=self.reconciler,
            sweeps=self.sweeps,
        )
        self.orphans = OrphanRemoval(
            client, self.volume, settings, metrics, shipping=self.shipping, history=self.history, builds=self.reconciler.builds
        )
        self.resync = Resync(
            client, self.event_filter, self.events.missed, metrics, shard=self.shard, restored=self.events.restored
        )
        self.health = Health(
            self.tasks,
            self.lease,
            self.resync,
            self.volume,
            self.shard,
            lease_seconds=settings.lease_seconds,
            stopping=lambda: self._stopping,
        )

    async def _serve(self) -> None:
        """Start the HTTP servers, and register the callbacks that stop the other components before the servers."""
        key = self.signer.public if self.signer else None
        endpoints = Endpoints(self.health, self.metrics, self.volume, self.shipping, self.history, public_key=key)
        stack = self._stack
        await stack.enter_async_context(endpoints.served(self.settings))
        stack.push_async_callback(release_lease, self.lease)
        stack.push_async_callback(self.tasks.cancel)
        stack.push_async_callback(self.reconciler.fetches.stop)
        stack.push_async_callback(self.reconciler.reads.stop)
        stack.push_async_callback(self.reconciler.builds.stop)
        stack.push_async_callback(self._stop_queues)

    def _start_tasks(self) -> None:
        if self.traces is not None:
            self.tasks.start("traces", self.traces.run())
        self.tasks.start("lease", hold_lease(self.lease, self._end))
        self.tasks.start("work", self._work())
        if self.models is not None:
            renew = partial(self._renew_keys, self.models.renew)
            self.tasks.start("keys", repeat("renewing the gateway's keys", lambda: model_gateway.RENEW_SECONDS, renew))
            if self.settings.models:
                loads = ModelLoads([limited.model for limited in self.settings.models])
                adapt = partial(self._adapt_models, self.models, loads)
                self.tasks.start("models", repeat("adapting the limits of models", lambda: LOAD_SECONDS, adapt))
        pause = partial(self.resync.pause_seconds, self.settings.resync_seconds)
        self.tasks.start("resync", repeat("comparing lists with watches", pause, self.resync.compare))

    async def stop(self) -> None:
        """Stop all components in the reverse order of their start. The next leader resumes the trials. The call is idempotent."""
        self._stopping = True
        await self._stack.aclose()

    async def _work(self) -> None:
        await self.lease.acquired.wait()
        logger.info("%s acquired the leader lease; it runs %s", self.lease.replica, self.shard)
        await retry_until_success("counting starting pods", partial(self._count_starting_pods, self._client), tries=1)
        if self.settings.models:
            await retry_until_success("counting active trials", partial(self._count_active_trials, self._client))
        self.reconciler.reader.clear()
        self.queue.start()
        self.sweep_queue.start()
        await retry_until_success("reconciling every trial and sweep", self.resync.everything)
        self.tasks.start("orphans", self.orphans.run())

    def _sweep_tasks(self, client: ClusterClient) -> SweepTasks:
        fetches = self.reconciler.fetches.of_sweeps(lambda key: self.events.enqueue_sweep(key))
        return SweepTasks(client, RemoteTasks(fetches, partial(client.get, SECRETS), self.settings.task_sources), fetches)

    async def _stop_queues(self) -> None:
        limit = self.settings.stop_seconds
        await asyncio.gather(self.queue.stop(within_seconds=limit), self.sweep_queue.stop(within_seconds=limit))

    async def _count_starting_pods(self, client: ClusterClient) -> None:
        """Count the pods that an earlier leader created and that are still starting, before watch events report them."""
        selectors = {"label_selector": self.shard.selecting(pod_identity.LABEL_TRIAL), "field_selector": "status.phase=Pending"}
        for namespace in self.shard.namespaces_to_list:
            for pod in await client.list_all(PODS, namespace, **selectors):
                with contained("a pod", pod):
                    if (key := pod_identity.trial_of(pod)) is not None:
                        self.reconciler.admission.starts.observe(key, pod_facts(pod))

    async def _count_active_trials(self, client: ClusterClient) -> None:
        """Count the trials that an earlier leader started, before this leader gives the slots of their models to other trials."""
        for content_path in self.shard.namespaces_to_list:
            async for trial in client.iterate(TRIALS, content_path, label_selector=self.shard.selector):
                with contained("a trial", trial):  # the trial's next reconcile reports the error
                    self.reconciler.admission.model_slots.observe(parse_trial(trial))

    async def _renew_keys(self, renew: Callable[[], Awaitable[None]]) -> None:
        """Register the keys that the gateway lacks, and set the metric that shows whether the gateway answers."""
        try:
            await renew()
        except GatewayError:
            self.metrics.gateway_up.set(0)
            raise
        self.metrics.gateway_up.set(1)

    async def _adapt_models(self, gateway: Gateway, loads: ModelLoads) -> None:
        """Adapt the limits of active trials to the providers' refusals. A standby, which runs no trials, changes no limit."""
        new_loads = loads.since_last(await gateway.loads())
        if self.lease.held:
            self.reconciler.admission.model_slots.adapt(new_loads)

    def _show(self, limit: RequestLimit) -> None:
        admission, metrics = self.reconciler.admission, self.metrics
        metrics.queue_depth.set_function(lambda: self.queue.depth)
        metrics.pods_starting.set_function(lambda: admission.starts.held)
        metrics.waiting.labels("pod").set_function(lambda: admission.starts.waiting)
        metrics.waiting.labels("quota").set_function(lambda: admission.quotas.waiting)
        metrics.waiting.labels("exec").set_function(lambda: admission.execs.waiting)
        metrics.waiting.labels("checkpoint").set_function(lambda: admission.transfers.waiting)
        slots = admission.model_slots
        metrics.waiting.labels("model").set_function(lambda: slots.waiting)
        for limited in self.settings.models:
            metrics.model_trials_active.labels(label_value(limited.model)).set_function(partial(slots.active, limited.model))
            metrics.model_trials_allowed.labels(label_value(limited.model)).set_function(partial(slots.limit, limited.model))
        metrics.requests_allowed.set_function(lambda: limit.allowed)
        metrics.leading.set_function(lambda: self.lease.held)
        metrics.phases.shown = metrics.sweeps.shown = lambda: self.lease.held


def _bucket(settings: Settings, check: Callable[[], None]) -> Bucket | None:
    """Return the settings' object store. Without one, return None, and results stay on the volume."""
    return Bucket.open(settings.results_store, settings.results_store_ca_file, check) if settings.results_store else None


def _signer(settings: Settings) -> Signer | None:
    """Return the key that signs evidence, or None if no key is set. Raises StoreError."""
    if settings.results_signing_key_file is None:
        return None
    from multistep.store.evidence.signing import Signer  # imported only if needed, because cryptography takes memory

    return Signer.load(settings.results_signing_key_file)
