"""Composes the parts of a trial's reconcile, and handles events of pods.

The reconciler is stateless. Hints and cached plans only save work. Each decision depends on the current trial and pod in the API
server, and on the runner's records.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.lifecycle.pod_start import is_starting
from multistep.errors import Conflict, NotFound, PodError, RunnerError, StreamLost
from multistep.kube.cluster_protocols import Cluster
from multistep.kube.resources import CONFIG_MAPS, SECRETS, TRIALS
from multistep.kube.shard import Shard
from multistep.reconcile.admission.admission import Admission
from multistep.reconcile.admission.concurrency_limit import ConcurrencyLimit, Key, Wake
from multistep.reconcile.admission.model_slots import ModelSlots
from multistep.reconcile.admission.pod_starts import PodStarts
from multistep.reconcile.admission.quotas import Quotas
from multistep.reconcile.loading.build_images import Builds
from multistep.reconcile.loading.load_tasks import Fetches, Reads
from multistep.reconcile.models.model_gateway import ModelAccess
from multistep.reconcile.queue.error_outcome import is_of_another_server
from multistep.reconcile.queue.event_filter import Changed, PodEvent
from multistep.reconcile.queue.work_queue import AT_NEXT_EVENT, SOON_SECONDS, Requeue
from multistep.reconcile.trial.checkpoint_transfers import Checkpointing
from multistep.reconcile.trial.complete_results import Finisher, Sign
from multistep.reconcile.trial.owned_pods import TrialPods
from multistep.reconcile.trial.reconcile_trial import TrialReconciler
from multistep.reconcile.trial.record_history import HistoryWriter
from multistep.reconcile.trial.run_sessions import Driver
from multistep.reconcile.trial.source_checkpoints import SourceTrials
from multistep.reconcile.trial.start_from_checkpoint import StartingPoints
from multistep.reconcile.trial.trial_run import Memory
from multistep.settings import Settings
from multistep.sources.load.image_registry import BuiltImages, ImageRegistry
from multistep.sources.load.load_trial import TrialLoader
from multistep.sources.load.remote_tasks import RemoteTasks
from multistep.sources.reader.read_task import TaskReader
from multistep.store.bucket.upload_results import ResultsUploader
from multistep.store.history import History
from multistep.store.results_volume import ResultsVolume
from multistep.telemetry.metrics import Metrics
from multistep.telemetry.trial_metrics import TrialMetrics

# Delay of the reconcile after a pod's scheduling gates or errors disappeared. Usually the pod runs after this time.
STARTED_REQUEUE_SECONDS = 1.0


@dataclass
class Reconciler:
    """Reconciles one trial per call."""

    cluster: Cluster
    volume: ResultsVolume
    settings: Settings
    metrics: Metrics
    clock: Callable[[], float] = time.time
    """Returns seconds since the epoch."""
    wake: Wake = lambda _: None
    """Requeues a key."""
    ended: Callable[[MultiStepTrial], object] = lambda _: None
    """Called with each finished trial."""
    changed: Changed = lambda _: False
    """Returns whether an event showed a newer spec of a trial, or a request to delete it."""
    shipping: ResultsUploader | None = None
    """Client of the object store, None without one."""
    models: ModelAccess | None = None
    """Client of the model gateway, None without one."""
    history: History | None = None
    """The history of finished trials, None to write no rows."""
    sign: Sign | None = None
    """Signs the statements about results, None to leave them unsigned."""
    registry: BuiltImages | None = None
    """Registry of built images, None for the one in the settings."""

    def __post_init__(self) -> None:
        settings = self.settings
        self.shard = Shard(settings.shard, settings.namespaces)
        self.fetches = Fetches(settings, self.wake)
        self.reads = Reads(self.wake)
        registry = self.registry or ImageRegistry(settings)
        self.builds = Builds(self.cluster, self.volume, settings, registry, self.wake, self.clock)
        self.reader = TaskReader(settings.task_cache_dir)
        self.admission = Admission(
            starts=PodStarts(settings.starting_pods, self.wake, self.clock),
            model_slots=ModelSlots(settings.models, self.wake),
            quotas=Quotas(self.wake, self.clock),
            execs=ConcurrencyLimit(settings.exec_sessions, self.wake),
            transfers=ConcurrencyLimit(
                settings.checkpoint_transfers, self.wake, max_per_namespace=settings.checkpoint_transfers - 1
            ),
            jobs=[self.fetches.limit, self.reads.limit, *self.builds.limits],
        )
        sources = SourceTrials(self.cluster, self.volume, self.shipping)
        self.memory = Memory(TrialMetrics(self.metrics, self.clock, ended=self.ended))
        self.trials = TrialReconciler(
            cluster=self.cluster,
            loader=self._loader(),
            pods=TrialPods(self.cluster, guarded=settings.drain == "Wait"),
            admission=self.admission,
            driver=self._driver(),
            models=self.models,
            checkpointing=Checkpointing(self.volume),
            finisher=Finisher(self.cluster, self.volume, settings, self.shipping, self.sign, self._history_writer()),
            sources=sources,
            starting_points=StartingPoints(self.cluster, self.volume, sources, self.clock),
            volume=self.volume,
            memory=self.memory,
            metrics=self.metrics,
            settings=settings,
            clock=self.clock,
        )

    def _history_writer(self) -> HistoryWriter | None:
        return HistoryWriter(self.cluster, self.history) if self.history is not None else None

    def _loader(self) -> TrialLoader:
        get_config_map, get_secret = partial(self.cluster.get, CONFIG_MAPS), partial(self.cluster.get, SECRETS)
        return TrialLoader(
            get_config_map,
            get_secret,
            RemoteTasks(self.fetches, get_secret, self.settings.task_sources),
            self.reader,
            self.reads,
            self.builds,
            egress=self.settings.egress,
        )

    def _driver(self) -> Driver:
        return Driver(
            self.cluster,
            self.volume,
            self.settings,
            self.metrics,
            self.shipping,
            sessions_queued=lambda: self.admission.execs.waiting > 0,
            models=self.models,
            transfers=self.admission.transfers,
            changed=self.changed,
            clock=self.clock,
        )

    def on_pod_event(self, event: PodEvent, type: str | None) -> float | None:
        """Update limits and quota queues after a watch event of this type. Return the seconds within which the trial needs a
        reconcile.

        Return None if the trial's timer is soon enough, because the pod is only starting or became ready. An unready pod has a
        result, but a pod becomes ready after a session has read the result.
        """
        pod, before, deleted = event.now, event.before, type == "DELETED"
        self.admission.starts.observe(event.key, pod, deleted=deleted)
        if deleted or pod.phase in ("Succeeded", "Failed"):  # a quota does not count a finished pod
            self.admission.quotas.pod_ended(event.key[0])
        if before is not None and before != pod and replace(before, ready=True) == pod:
            return None
        if deleted or not is_starting(pod):
            return 0.0
        # A pod that was just created or was already starting needs no reconcile, because its trial already has a timer.
        waits = type == "ADDED" if before is None else is_starting(before)
        return None if waits else STARTED_REQUEUE_SECONDS

    async def reconcile(self, key: Key) -> Requeue:
        """Reconcile one trial, and return when to reconcile it again."""
        async with self.admission.reconcile(key):
            with self.metrics.reconcile_seconds.time():
                return await self._reconcile(key)

    async def _reconcile(self, key: Key) -> Requeue:
        try:
            trial = await self.cluster.get(TRIALS, *key)
        except NotFound as error:
            if is_of_another_server(error):
                raise
            self._forget(key)
            return AT_NEXT_EVENT
        if not self.shard.has(trial["metadata"]):  # the trial's shard label assigns it to another operator
            self._forget(key)
            return AT_NEXT_EVENT
        try:
            return await self.trials.reconcile(trial)
        except (Conflict, NotFound) as error:
            if isinstance(error, NotFound) and is_of_another_server(error):
                raise
            return Requeue(SOON_SECONDS)  # an object changed or was deleted; the watch may have missed the event
        except PodError as error:
            cause = "stream" if isinstance(error, StreamLost) else "runner" if isinstance(error, RunnerError) else "pod"
            self.metrics.exec_session_failures.labels(cause).inc()
            raise

    def _forget(self, key: Key) -> None:
        """Forget a trial that was deleted or belongs to another operator."""
        self.memory.forget(key)
        self.admission.forget(key)
