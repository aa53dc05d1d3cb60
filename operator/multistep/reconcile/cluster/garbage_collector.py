"""Garbage collection of orphans, which are pods and results that belong to no trial. engine.lifecycle.clean_up decides. It also
packs the history.

A pass runs every few minutes. Each object is read again right before its deletion, and deleted by its UID. The only persistent
state is the marks that are stored with the results, so a pass may be interrupted anywhere, and two passes may run at once. A pass
lists only metadata. It reads a pod's trial once, and again only after the trial has changed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from multistep.api.common import history_address, labels
from multistep.api.trial.trial import MultiStepTrial, salvaged
from multistep.engine.lifecycle import clean_up
from multistep.errors import AlreadyExists, MultistepError, NotFound
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import PODS, TRIALS
from multistep.kube.shard import Shard
from multistep.logs import about
from multistep.pods import builder_pod, pod_identity
from multistep.pods.pod_facts import pod_facts
from multistep.reconcile.loading.build_images import Builds
from multistep.settings import Settings
from multistep.store.bucket.upload_results import ResultsUploader
from multistep.store.files.trial_key import ResultsStore, TrialKey
from multistep.store.history import History
from multistep.store.results_volume import ResultsVolume
from multistep.telemetry.metrics import Metrics

T = TypeVar("T")
# Builders' pods younger than this are kept, because after a restart of the operator their trials may not have requested the build
# yet.
_BUILDER_SECONDS = 600.0
FIRST_SECONDS = 15.0  # delay of the first pass after the operator's start

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OrphanRemoval:
    """Deletes clean_up."""

    cluster: Cluster
    volume: ResultsVolume
    settings: Settings
    metrics: Metrics
    clock: Callable[[], float] = time.time
    """Returns seconds since the epoch."""
    shipping: ResultsUploader | None = None
    """Gives access to the object store, None without one."""
    history: History | None = None
    """The history of finished trials, None to leave its files as they are."""
    builds: Builds | None = None
    """The builds for which trials wait, None if the operator does not build images."""
    _published: set[str] = field(default_factory=set)
    """Namespaces whose history's address was published, or that did not exist."""
    _wanted: dict[str, str] = field(default_factory=dict)
    """By a pod's UID, the trial's resourceVersion when the trial last needed the pod."""

    async def run(self) -> None:
        """Run passes forever. The first one starts after about FIRST_SECONDS, or earlier if the interval of passes is shorter."""
        seconds = min(FIRST_SECONDS, self.settings.orphans_seconds)
        while True:
            await asyncio.sleep(seconds * random.uniform(0.75, 1.25))
            await self.once()
            seconds = self.settings.orphans_seconds

    async def once(self) -> None:
        """Run one pass. A part that fails is retried in the next pass."""
        parts = [self._check_pods, self._check_results, self._tidy_volume]
        parts += [self._pack_history] if self.history is not None else []
        parts += [self._check_builders] if self.settings.builds.registry else []
        await self._each(parts, lambda part: part(), "deleting orphans")

    async def _check_pods(self) -> None:
        seen: set[str] = set()
        for namespace in self._shard.namespaces_to_list:
            found = await self.cluster.list_metadata(PODS, namespace, label_selector=self._shard.selecting(labels.MANAGED_SELECTOR))
            versions = await self._trials(namespace)
            check = partial(self._check_pod, versions)
            await self._each(found, check, f"orphaned pods of {namespace or 'all namespaces'}")
            seen |= {each["uid"] for each in found}
        for gone in self._wanted.keys() - seen:
            del self._wanted[gone]

    async def _trials(self, namespace: str | None) -> dict[str, str]:
        """Return the resourceVersions of this shard's trials, by UID.

        A trial may be missing because it moved to another shard, so callers read it by name before they delete anything.
        """
        listed = await self.cluster.list_metadata(TRIALS, namespace, label_selector=self._shard.selector)
        return {each["uid"]: each["resourceVersion"] for each in listed}

    async def _check_pod(self, versions: Mapping[str, str], metadata: Object) -> None:
        found = {"metadata": metadata}
        pod, now, grace = pod_facts(found), self.clock(), self.settings.orphans_grace_seconds
        if not pod_identity.created_by_operator(found) or not clean_up.pod_orphaned(pod, None, now, grace):
            return  # the operator did not create the pod, or the pod is younger than the grace period
        wanted_by = self._wanted.get(pod.uid)
        if wanted_by is not None and wanted_by == versions.get(pod.owner_uid):
            return
        owner = pod_identity.trial_of(found)
        trial = await self._trial(*owner) if owner else None
        if why := clean_up.pod_orphaned(pod, trial, now, grace):
            namespace = metadata["namespace"]
            await self.cluster.delete(PODS, namespace, pod.name, uid=pod.uid)
            with about(namespace=namespace, trial=owner[1] if owner else None):
                self._report_deleted("pod", f"{namespace}/{pod.name}", why)
        elif trial is not None:
            self._wanted[pod.uid] = trial.metadata.resource_version

    async def _check_builders(self) -> None:
        """Delete this operator's pods of builds for which no trial waits, and old logs of builds.

        Another operator may build in the same namespace, but only that operator knows which of its builds are needed.
        """
        namespace, wanted, now = (
            builder_pod.builds_namespace(self.settings),
            self.builds.wanted if self.builds else (),
            self.clock(),
        )
        for metadata in await self.cluster.list_metadata(
            PODS, namespace, label_selector=builder_pod.builder_selector(self.settings)
        ):
            pod = pod_facts({"metadata": metadata})
            needed = builder_pod.build_of({"metadata": metadata}) in wanted
            if clean_up.builder_orphaned(pod.created_at, wanted=needed, deleting=pod.deleting, now=now, grace=_BUILDER_SECONDS):
                await self.cluster.delete(PODS, namespace, pod.name, uid=pod.uid)
                self._report_deleted("pod", f"{namespace}/{pod.name}", "no trial waits for the image that it builds")
        await self.volume.build_logs.remove_older(now - self.settings.builds.log_retention_seconds)

    async def _check_results(self) -> None:
        await self._each(self._stores, self._check_store, "orphaned results")

    async def _check_store(self, store: ResultsStore) -> None:
        watched = set(self.settings.namespaces)
        found = {key: since for key, since in (await store.trials()).items() if not watched or key.namespace in watched}
        if not found:
            return
        alive: set[str] = set()  # UIDs of trials, which are listed after the results so that no trial with results is missed
        for namespace in self._shard.namespaces_to_list:
            alive |= (await self._trials(namespace)).keys()
        await self._each(
            found.items(), lambda each: self._check_trial_results(store, *each, alive=each[0].uid in alive), "orphaned results"
        )

    async def _check_trial_results(self, store: ResultsStore, key: TrialKey, gone_since: float | None, *, alive: bool) -> None:
        now, keep = self.clock(), self.settings.results_retention_seconds
        if keep is not None:  # keep results for the grace period, because the deleted trial's last reconcile may still write some
            keep = max(keep, self.settings.orphans_grace_seconds)
        fate = clean_up.fate_of_results(alive=alive, gone_since=gone_since, now=now, keep=keep)
        if fate in ("MarkGone", "Remove"):
            current = await self._trial(key.namespace, key.name)
            if current is not None and current.metadata.uid == key.uid:
                return  # the trial exists, so the list was outdated
        with about(namespace=key.namespace, trial=key.name, uid=key.uid):
            await self._apply(store, key, fate, now, keep)

    async def _apply(self, store: ResultsStore, key: TrialKey, fate: clean_up.Fate, now: float, keep: float | None) -> None:
        match fate:
            case "MarkGone":
                await store.mark_gone(key, now)
            case "Unmark":
                await store.unmark(key)
            case "Remove":
                await store.remove(key)
                self._report_deleted("results", str(key), f"its trial was deleted more than {keep} s ago")

    async def _pack_history(self) -> None:
        """Pack the history's lines, delete those that are older than the retention, and publish the addresses of the others."""
        assert self.history is not None
        before, retention = self.clock() - self.settings.orphans_grace_seconds, self.settings.history_retention_seconds
        groups = await self.history.groups()
        await self._each(groups, partial(self.history.pack, before=before), "packing the history")
        if retention is not None:
            day = datetime.fromtimestamp(self.clock() - retention, UTC).date()
            if removed := await self.history.remove_older(day):
                logger.info("deleted %d packs of the history from before %s", removed, day)
        known = {namespace for namespace in await self.history.namespaces() if namespace not in self._published}
        current = {self.history.namespace_of(group) for group in groups}  # which may have been deleted and created again
        await self._each(sorted(known | current), self._publish_history, "publishing the history's address")

    async def _publish_history(self, namespace: str) -> None:
        """Create the ConfigMap with the address of a namespace's history, unless it exists or the namespace does not. Who may read
        the ConfigMap may read the history."""
        url = self.volume.access.history_uri(self.settings.results_url, namespace)
        with suppress(AlreadyExists, NotFound):
            await self.cluster.create(history_address.config_map(namespace, url))
        self._published.add(namespace)

    async def _tidy_volume(self) -> None:
        removed = await self.volume.disk.tidy(self.clock() - self.settings.orphans_grace_seconds)
        if removed:
            logger.info("deleted %d orphaned files of crashes from the results volume", removed)
            self.metrics.orphans_deleted.labels("file").inc(removed)
        self.metrics.results_free.set(await self.volume.disk.free_bytes())

    async def _trial(self, namespace: str, name: str) -> MultiStepTrial | None:
        """Return the current trial, None if it does not exist. An invalid trial is returned without its invalid fields."""
        try:
            return salvaged(await self.cluster.get(TRIALS, namespace, name))
        except NotFound as error:
            if error.reason != "NotFound":  # the API server does not serve trials at the moment, so this trial may exist
                raise
            return None

    @property
    def _stores(self) -> list[ResultsStore]:
        return [self.volume] if self.shipping is None else [self.volume, self.shipping.results]

    @property
    def _shard(self) -> Shard:
        return Shard(self.settings.shard, self.settings.namespaces)

    def _report_deleted(self, kind: str, name: str, why: str) -> None:
        logger.info("deleted %s %s: %s", kind, name, why)
        self.metrics.orphans_deleted.labels(kind).inc()

    async def _each(self, items: Iterable[T], act: Callable[[T], Awaitable[object]], what: str) -> None:
        """Call ``act`` for each item. If it fails, log the error and continue."""
        for item in items:
            try:
                await act(item)
            except Exception as error:
                logger.warning("%s: %s; retrying in the next round", what, error, exc_info=not isinstance(error, MultistepError))
