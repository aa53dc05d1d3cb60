"""Reads the output of the services of a trial's pod, for the trial's results."""

from __future__ import annotations

from typing import Final

from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.plan.plan_services import PodServices
from multistep.errors import ClusterError, NotFound
from multistep.kube.cluster_protocols import Cluster
from multistep.store.harbor.trial_files import service_log

_LINES: Final = 20_000
_BYTES: Final = 2 << 20  # maximum per service, so that the results of many trials stay small


async def service_logs(cluster: Cluster, trial: MultiStepTrial, services: PodServices | None) -> dict[str, bytes]:
    """Return the last lines of each service's output, by path in the results. They explain a failure but decide nothing, so an
    output that cannot be read is replaced by the reason."""
    found: dict[str, bytes] = {}
    pod = trial.status.pod_name
    for each in services.order if services and pod and trial.status.pod_uid else ():
        try:
            read = cluster.logs(trial.metadata.namespace, pod or "", each.container, tail_lines=_LINES, limit_bytes=_BYTES)
            found[service_log(each.name)] = b"".join([chunk async for chunk in read])
        except NotFound:
            break  # the pod was deleted
        except ClusterError as error:
            found[service_log(each.name)] = f"the output cannot be read: {error}\n".encode(errors="replace")
    return found
