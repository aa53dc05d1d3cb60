"""Brings trials forward, one look at a time.

Nothing is kept in memory that matters. Hints (what a pod was left with, plans) only save work; each decision rests on
the trial and the pod as the API server has them now, and on the runner's own records.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ..api.trial import MultiStepTrial
from ..cluster.edge import Cluster
from ..cluster.shard import Shard
from ..engine.lifecycle import on_its_way
from ..errors import Conflict, NotFound, PodError, RunnerError, StreamLost
from ..metrics import Metrics
from ..settings import Settings
from ..sources.read_task import TaskReader
from ..sources.remote import Remote
from ..sources.trial import TrialLoader
from ..store.shipping import Shipping
from ..store.volume import Volume
from .bounds import Bound, PodStarts, Wake
from .driver import Driver
from .event_filter import PodEvent
from .fetches import Fetches
from .finisher import Finisher
from .pod_hints import PodHints
from .quotas import Quotas
from .reads import Reads
from .tally import Tally
from .trial_pods import TrialPods
from .trial_reconcile import SOON_SECONDS, Tools, TrialReconcile
from .turns import Key

STARTING_NEWS_SECONDS = 1.0  # of a pod that was held back and is on its way now; most often it runs soon


@dataclass
class Reconciler:
    """What the queue calls. clock: seconds since the epoch; wake: adds a key to the queue; ended: told of trials that are over;
    shipping: to an object store."""

    cluster: Cluster
    volume: Volume
    settings: Settings
    metrics: Metrics
    clock: Callable[[], float] = time.time
    wake: Wake = lambda _: None
    ended: Callable[[MultiStepTrial], object] = lambda _: None
    shipping: Shipping | None = None

    def __post_init__(self) -> None:
        enforced = self.settings.network_policy_enforced
        self.shard = Shard(self.settings.shard, self.settings.namespaces)
        self.hints = PodHints()
        self.starts = PodStarts(self.settings.starting_pods, self.wake, self.clock)
        self.quotas = Quotas(self.wake, self.clock)
        self.execs = Bound(self.settings.open_execs, self.wake)
        self.fetches = Fetches(self.settings, self.wake)
        remote = Remote(self.fetches, self.cluster.get_secret, self.settings.task_sources)
        self.reads = Reads(self.wake)
        self.reader = TaskReader(self.settings.task_cache_dir)
        get_config_map, get_secret = self.cluster.get_config_map, self.cluster.get_secret
        self._tools = Tools(
            cluster=self.cluster,
            pods=TrialPods(self.cluster, guarded=self.settings.drain == "Wait"),
            loader=TrialLoader(get_config_map, get_secret, remote, self.reader, self.reads, policies_enforced=enforced),
            driver=Driver(
                self.cluster, self.volume, self.settings, self.metrics, self.shipping, hurried=lambda: self.execs.waiting > 0
            ),
            finisher=Finisher(self.volume, self.settings, self.shipping),
            volume=self.volume,
            settings=self.settings,
            metrics=self.metrics,
            tally=Tally(self.metrics, self.clock, ended=self.ended),
            clock=self.clock,
            hints=self.hints,
            starts=self.starts,
            quotas=self.quotas,
            execs=self.execs,
        )

    def on_pod_event(self, event: PodEvent, type: str | None) -> float | None:
        """Others may make their pods now. type: of the watch's event. Returns the seconds within which to look at the trial; None:
        when its time comes, as it is known to wait for the pod, which is on its way."""
        pod, before, gone = event.now, event.before, type == "DELETED"
        self.starts.saw(event.key, pod, gone=gone)
        if gone or pod.phase in ("Succeeded", "Failed"):  # what ended counts for no quota
            self.quotas.went(event.key[0])
        if gone or not on_its_way(pod):
            return 0.0
        waits = type == "ADDED" if before is None else on_its_way(before)  # it was added by the look that waits now
        return None if waits else STARTING_NEWS_SECONDS

    async def reconcile(self, key: Key) -> float | None:
        """One look. Returns the seconds after which to look again; None: only when something happens."""
        try:
            with self.metrics.reconcile_seconds.time():
                return await self._look(key)
        finally:
            self.starts.settle(key)
            self.quotas.settle(key)
            self.execs.free(key)
            self.fetches.settle(key)
            self.reads.settle(key)

    async def _look(self, key: Key) -> float | None:
        try:
            trial = await self.cluster.get_trial(*key)
        except NotFound:
            self._forget(key)
            return None
        if not self.shard.has(trial["metadata"]):  # it was given to another operator, which sees it by its label
            self._forget(key)
            return None
        try:
            return await TrialReconcile(self._tools, trial).run()
        except (Conflict, NotFound):  # something changed or went meanwhile, and the news of it may be lost
            return SOON_SECONDS
        except PodError as error:
            cause = "stream" if isinstance(error, StreamLost) else "runner" if isinstance(error, RunnerError) else "pod"
            self.metrics.exec_failures.labels(cause).inc()
            raise

    def _forget(self, key: Key) -> None:
        """The trial does not exist any more, or it is another operator's."""
        self._tools.tally.gone(key)
        self.hints.forget(key)
