"""Switches the networks of trial pods: requests a network from the pod's egress sidecar, in an exec session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from multistep.api.trial.runner_records import Record
from multistep.engine.journal.operations import SwitchNetwork, place_of
from multistep.engine.lifecycle.decisions import PodFacts
from multistep.engine.script import network_switch as rules
from multistep.errors import EgressError, EgressRefused, RunnerError, StreamLost
from multistep.kube.cluster_protocols import Cluster, ExecStream
from multistep.pods import egress_sidecar
from multistep.reconcile.trial.session_state import Drive
from multistep.runner_client.session import Session

_MAX_ANSWER_BYTES = 1 << 20


class NetworkSwitch:
    """Switches networks. timeout_seconds: timeout of one switch."""

    def __init__(self, cluster: Cluster, timeout_seconds: float) -> None:
        self._cluster = cluster
        self._timeout = timeout_seconds

    async def perform(self, drive: Drive, session: Session, operation: SwitchNetwork) -> Record:
        """Switch the network, and add the answer to the runner's records. Idempotent: the sidecar gives the same answer to a
        repeated request.

        Raises EgressRefused if the sidecar refuses, EgressError if it has restarted since an earlier switch: a restarted sidecar
        closes the network, so processes lacked their network meanwhile. When the kubelet reports how the sidecar ended,
        engine.lifecycle.next_decision ends the attempt.
        """
        pod = drive.pod(operation.where)
        try:
            async with asyncio.timeout(self._timeout):
                answer = await ask(pod.name, await self._stream(drive, pod), _request(operation))
        except TimeoutError:
            raise StreamLost(f"the egress sidecar of pod {pod.name} did not answer within {self._timeout:g} s") from None
        if (error := answer.get("error")) is not None:
            message = f"the egress sidecar of pod {pod.name} refuses {operation.network.mode}: {str(error)[:500]}"
            raise EgressRefused(message, invalid_hosts=answer.get("invalidHosts") is True)
        former = {rules.boot(each.result) for each in drive.records.values() if _is_switch(each, operation)}
        if former - {_boot(pod.name, answer)}:
            raise EgressError(f"the egress sidecar of pod {pod.name} has restarted")
        return await session.note(operation.id, {name: answer[name] for name in ("boot", "refused", "others") if name in answer})

    async def _stream(self, drive: Drive, pod: PodFacts) -> ExecStream:
        """Return the drive's exec session with a pod's sidecar. All switches share it: opening one takes longer than a switch."""
        if (stream := drive.sidecars.get(pod.uid)) is None:
            stream = await self._cluster.open_exec(
                drive.trial.metadata.namespace, pod.name, egress_sidecar.CONTAINER, egress_sidecar.CALL
            )
            drive.stack.push_async_callback(stream.close)
            drive.sidecars[pod.uid] = stream
        return stream


async def ask(pod: str, stream: ExecStream, request: bytes) -> Mapping[str, Any]:
    """Send the sidecar a request, a line of JSON, and return its answer. stream: an exec session that runs egress_sidecar.CALL."""
    await stream.send(request)
    return _answer(pod, await _line(pod, stream))


def _request(operation: SwitchNetwork) -> bytes:
    network = operation.network
    wanted = {"id": operation.id, "mode": network.mode, "hosts": list(network.hosts), "gateway": network.gateway}
    return json.dumps(wanted).encode() + b"\n"


async def _line(pod: str, stream: ExecStream) -> bytes:
    received = b""
    while not received.endswith(b"\n"):
        chunk = await stream.receive()
        if not chunk or len(received) > _MAX_ANSWER_BYTES:
            raise StreamLost(f"the egress sidecar of pod {pod} gave no answer: {stream.exit_details[:500]}")
        received += chunk
    return received


def _answer(pod: str, line: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise EgressRefused(f"the egress sidecar of pod {pod} gave an invalid answer: {line[:200]!r}")
    return answer


def _boot(pod: str, answer: Mapping[str, Any]) -> str:
    """Return the boot id of a confirmation. Raises EgressRefused if the confirmation is invalid."""
    try:
        rules.refused(answer)
        return rules.boot(answer)
    except RunnerError as error:
        raise EgressRefused(f"the egress sidecar of pod {pod} gave an invalid answer: {error}") from None


def _is_switch(record: Record, operation: SwitchNetwork) -> bool:
    """Return whether the record belongs to an earlier switch in the same pod."""
    attempt, step, *_ = operation.id.split("/")
    *scope, name = record.id.split("/")
    same_pod = scope[0] == attempt and (operation.where == "agent" or scope[1] == step)
    return (
        same_pod and place_of(record.id) == operation.where and (name == "network" or name.startswith("network-")) and record.done
    )
