"""Shows the output of a trial's service: from its container until the trial finishes, afterwards from the results."""

from __future__ import annotations

from contextlib import aclosing
from urllib.parse import quote

from multistep.api.trial.conditions import is_finished
from multistep.api.trial.trial import parse_status
from multistep.cli.cluster import Cluster, existing_trial
from multistep.cli.trial.logs.print_logs import MAX_TAIL_BYTES, Form
from multistep.cli.trial.results.fetch import read_part
from multistep.engine.plan.plan_services import container_name
from multistep.errors import ClusterError, UsageError
from multistep.store.harbor.trial_files import service_log


async def show(cluster: Cluster, namespace: str, trial: str, service: str, form: Form, *, follow: bool, tail: int | None) -> None:
    """Show a service's output. follow: continue until the container terminates. Raises UsageError if the output cannot be read."""
    status = parse_status(await existing_trial(cluster, namespace, trial))
    if is_finished(status):
        await _stored(cluster, status.results or "", service, form, tail)
    elif status.pod_name is None:
        raise UsageError(f"trial {trial} has no pod yet")
    else:
        await _live(cluster, namespace, status.pod_name, service, form, follow=follow, tail=tail)
    form.close()


async def _live(cluster: Cluster, namespace: str, pod: str, service: str, form: Form, *, follow: bool, tail: int | None) -> None:
    try:
        read = cluster.logs(namespace, pod, container_name(service), follow=follow, tail_lines=tail)
        async with aclosing(read):
            async for chunk in read:
                form.show(chunk)
    except ClusterError as error:
        if error.status not in (400, 403, 404):
            raise
        raise UsageError(f"the output of service {service!r} in pod {pod} cannot be read: {error}") from error


async def _stored(cluster: Cluster, uri: str, service: str, form: Form, tail: int | None) -> None:
    offset, whole = 0, b""
    while uri and (part := await read_part(cluster, uri, quote(service_log(service)), offset, MAX_TAIL_BYTES)) is not None:
        offset, whole = offset + len(part), whole + part
        if len(part) < MAX_TAIL_BYTES:
            lines = whole.splitlines(keepends=True)
            return form.show(b"".join(lines if tail is None else lines[max(0, len(lines) - tail) :]))
    raise UsageError(f"the results have no output of a service {service!r}")
