"""Test sessions with the real runner through a real exec channel."""

from __future__ import annotations

import asyncio
import hashlib
import io
import secrets
import tarfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from multistep.api.trial.runner_records import HealthcheckResult, PhaseResult
from multistep.cli.doctor.observe import is_ready
from multistep.client.reconnecting_watch import WatchingClient
from multistep.engine.journal.operations import ResetDirectory, Source
from multistep.errors import PodError, RunnerError, StreamLost
from multistep.kube.resources import PODS
from multistep.runner_client.session import ANSWER_TIMEOUT_SECONDS, Session
from tests.e2e.cluster.conftest import Pod
from tests.e2e.given import DEADLINE_SECONDS
from tests.support.cutter import cutter
from tests.support.waiting import eventually

pytestmark = pytest.mark.xdist_group("cluster")  # one pytest-xdist worker runs all tests of the group and creates the pods once

MEBIBYTE = 2**20


@asynccontextmanager
async def session(
    client: WatchingClient, pod: Pod, answer_timeout_seconds: float = ANSWER_TIMEOUT_SECONDS
) -> AsyncIterator[Session]:
    stream = await client.open_exec(pod.namespace, pod.name, pod.container, ["/multistep/runner", "call"])
    async with Session(stream, pod_uid=pod.uid, answer_timeout_seconds=answer_timeout_seconds) as session:
        await session.hello()
        yield session


def new_id(operation: str) -> str:
    return f"{secrets.token_hex(4)}/a/{operation}"


def tar_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def shell(id: str, script: str, **more: object) -> dict[str, object]:
    return {"id": id, "argv": ["/bin/sh", "-c", script], "timeoutSeconds": 60, "tailBytes": 4096, **more}


async def finished(talk: Session, spec: dict[str, object]) -> PhaseResult:
    await talk.start(spec)
    record = await talk.wait(str(spec["id"]), DEADLINE_SECONDS)
    assert record.done
    talk.ack(record.id)
    return PhaseResult.from_record(record)


async def test_hello_reports_the_pod(client: WatchingClient, runner_pod: Pod) -> None:
    stream = await client.open_exec(runner_pod.namespace, runner_pod.name, "main", ["/multistep/runner", "call"])
    async with Session(stream, pod_uid=runner_pod.uid) as talk:
        hello = await talk.hello()
    assert (hello.pod_uid, hello.user.uid, hello.workdir) == (runner_pod.uid, 0, "/")


async def test_another_pod_was_meant(client: WatchingClient, runner_pod: Pod) -> None:
    stream = await client.open_exec(runner_pod.namespace, runner_pod.name, "main", ["/multistep/runner", "call"])
    async with Session(stream, pod_uid="another") as talk:
        with pytest.raises(PodError, match="not in 'another'"):
            await talk.hello()


async def test_a_phase_runs_and_its_files_are_captured(client: WatchingClient, runner_pod: Pod) -> None:
    captures = [{"path": "/tmp/reward", "maxBytes": 100}, {"path": "/tmp/none", "maxBytes": 100}]
    async with session(client, runner_pod) as talk:
        spec = shell(new_id("agent"), "echo $NAME; printf 0.5 >/tmp/reward; exit 3", env={"NAME": "é"}, captures=captures)
        result = await finished(talk, spec)
    assert (result.exit_code, result.tail, result.timed_out) == (3, "é\n", False)
    reward = result.captures["/tmp/reward"]
    assert reward is not None
    assert (reward.data, result.captures["/tmp/none"]) == (b"0.5", None)


async def test_a_phase_outlives_its_session_and_its_end_unreadies_the_pod(client: WatchingClient, runner_pod: Pod) -> None:
    id, go = new_id("agent"), f"/tmp/{secrets.token_hex(4)}"
    await eventually(lambda: pod_is_ready(client, runner_pod))  # the phase of an earlier test may have made it unready
    async with session(client, runner_pod) as talk:
        assert not (await talk.start(shell(id, f"while [ ! -e {go} ]; do sleep 0.1; done; echo done"))).done
    async with session(client, runner_pod) as talk:
        await talk.upload(new_id("upload"), "/tmp", tar_of({Path(go).name: b""}))
    await eventually(lambda: pod_is_unready(client, runner_pod))
    async with session(client, runner_pod) as talk:
        record = await talk.wait(id, DEADLINE_SECONDS)  # a slow answer to the kubelet's probe makes the pod unready, too
        assert PhaseResult.from_record(record).tail == "done\n"
        talk.ack(id)
    await eventually(lambda: pod_is_ready(client, runner_pod))


async def pod_is_unready(client: WatchingClient, pod: Pod) -> bool:
    return not await pod_is_ready(client, pod)


async def pod_is_ready(client: WatchingClient, pod: Pod) -> bool:
    return is_ready(await client.get(PODS, pod.namespace, pod.name))


async def test_a_time_limit_ends_a_phase(client: WatchingClient, runner_pod: Pod) -> None:
    async with session(client, runner_pod) as talk:
        result = await finished(talk, shell(new_id("agent"), "sleep 60", timeoutSeconds=0.3))
    assert result.timed_out


async def test_a_healthcheck_is_tried_until_it_succeeds(client: WatchingClient, runner_pod: Pod) -> None:
    id, mark = new_id("healthcheck"), f"/tmp/{secrets.token_hex(4)}"
    tries = {"intervalSeconds": 0.1, "timeoutSeconds": 60, "startPeriodSeconds": 0, "startIntervalSeconds": 1, "retries": 5}
    script = f"[ -e {mark} ] || {{ touch {mark}; exit 1; }}"
    async with session(client, runner_pod) as talk:
        await talk.healthcheck({"id": id, "argv": ["/bin/sh", "-c", script], "user": "", "cwd": "", "env": {}, **tries})
        result = HealthcheckResult.from_record(await talk.wait(id, DEADLINE_SECONDS))
        talk.ack(id)
    assert (result.healthy, result.attempts) == (True, 2)


async def test_files_go_in_and_come_out_unchanged(client: WatchingClient, runner_pod: Pod) -> None:
    root, binary = f"/tmp/{secrets.token_hex(4)}", bytes(range(256)) * 1000
    got: list[bytes] = []
    async with session(client, runner_pod) as talk:
        await talk.reset(new_id("reset"), [ResetDirectory(root, 0o755)])
        await talk.upload(new_id("upload"), root, tar_of({"a/b.bin": binary, "c.log": b"log"}))
        result = await talk.download([Source(f"{root}/a/b.bin"), Source(root, ("*.log",)), Source("/none")], got.append)
    assert result.types == ("file", "directory", "missing")
    with tarfile.open(fileobj=io.BytesIO(b"".join(got))) as tar:
        files = {each.name: tar.extractfile(each).read() for each in tar if each.isfile()}  # type: ignore[union-attr]
    assert files == {"0": binary, "1/a/b.bin": binary}


async def test_a_refused_upload_reports_why_and_the_session_continues(client: WatchingClient, runner_pod: Pod) -> None:
    async with session(client, runner_pod) as talk:
        with pytest.raises(RunnerError) as caught:
            await talk.upload(new_id("upload"), "/tmp/x", tar_of({"../../etc/evil": b"x", "rest": bytes(3 * MEBIBYTE)}))
        assert caught.value.code == "Upload"
        with pytest.raises(RunnerError) as caught:
            await talk.wait("none", 0)
        assert caught.value.code == "NotFound"
        assert await talk.hello()


async def test_notes_are_kept_and_the_first_one_wins(client: WatchingClient, runner_pod: Pod) -> None:
    id = new_id("note")
    async with session(client, runner_pod) as talk:
        await talk.note(id, {"x": 1})
        assert (await talk.note(id, {"x": 2})).result == {"x": 1}
        with pytest.raises(RunnerError) as caught:
            await talk.reset(id, [])
        assert caught.value.code == "Conflict"


async def test_a_stream_cut_while_a_phase_runs_loses_nothing(client: WatchingClient, runner_pod: Pod) -> None:
    id, count = new_id("agent"), f"/tmp/{secrets.token_hex(4)}"
    phase = shell(id, f"echo once >>{count}; while [ ! -e {count}.go ]; do sleep 0.1; done")
    async with cutter(client.connection) as line:
        async with session(client, runner_pod) as talk:
            await talk.start(phase)
            waiting = asyncio.create_task(talk.wait(id, 20))
            await asyncio.sleep(0.2)  # fixed wait, because no condition shows that the request was sent
            line.cut()
            with pytest.raises(StreamLost):
                await waiting
        async with session(client, runner_pod) as talk:
            await talk.start(phase)
            await talk.upload(new_id("upload"), "/tmp", tar_of({Path(f"{count}.go").name: b""}))
            assert (await talk.wait(id, DEADLINE_SECONDS)).done
            talk.ack(id)
            assert (await finished(talk, shell(new_id("agent"), f"cat {count}"))).tail == "once\n"


async def test_an_upload_cut_in_the_middle_leaves_no_record_and_is_sent_again(client: WatchingClient, runner_pod: Pod) -> None:
    id, root = new_id("upload"), f"/tmp/{secrets.token_hex(4)}"
    data = tar_of({"big": secrets.token_bytes(8 * MEBIBYTE)})
    async with cutter(client.connection) as line:

        async def cut_in_the_middle() -> AsyncIterator[bytes]:
            yield data[: 4 * MEBIBYTE]
            line.cut()
            yield data[4 * MEBIBYTE :]

        async with session(client, runner_pod) as talk:
            with pytest.raises(StreamLost):
                await talk.upload(id, root, cut_in_the_middle())
        async with session(client, runner_pod) as talk:
            assert id not in [record.id for record in (await talk.hello()).records]
            await talk.upload(id, root, data)
            result = await finished(talk, shell(new_id("sum"), f"sha256sum <{root}/big"))
    assert result.tail.split()[0] == hashlib.sha256(data[512 : 512 + 8 * MEBIBYTE]).hexdigest()


async def test_a_stalled_line_ends_at_the_time_limit(client: WatchingClient, runner_pod: Pod) -> None:
    async with cutter(client.connection) as line, session(client, runner_pod) as talk:
        line.flowing.clear()
        talk._frames.timeout_seconds = 1.0  # set only after the session's hello request, which may take longer than 1 s
        async with asyncio.timeout(DEADLINE_SECONDS):  # without this timeout, a failure would hang the test
            with pytest.raises(StreamLost, match="silent for 1 s"):
                await talk.wait("none", 0)


@pytest.mark.long
async def test_throughput_of_files(client: WatchingClient, runner_pod: Pod) -> None:
    size, root = 128 * MEBIBYTE, f"/tmp/{secrets.token_hex(4)}"
    data, digest = tar_of({"big": bytes(size)}), hashlib.sha256()
    async with session(client, runner_pod) as talk:
        started = time.monotonic()
        await talk.upload(new_id("upload"), root, data)
        uploaded = time.monotonic()
        result = await talk.download([Source(f"{root}/big")], digest.update)
        downloaded = time.monotonic()
        await talk.reset(new_id("reset"), [ResetDirectory(root)])
    assert result.sha256 == digest.hexdigest()
    print(f"upload {size / 1e6 / (uploaded - started):.0f}, download {size / 1e6 / (downloaded - uploaded):.0f} MB/s")


async def test_a_session_from_inside_the_container_is_refused(client: WatchingClient, runner_pod: Pod) -> None:
    async with session(client, runner_pod) as talk:
        result = await finished(talk, shell(new_id("agent"), "/multistep/runner call </dev/null; echo $?"))
    assert result.tail.strip().endswith("1")


@pytest.mark.long
async def test_a_long_trial_sends_hello_with_every_result(client: WatchingClient, runner_pod: Pod) -> None:
    """All outputs together, as JSON, would exceed one frame. The reply to hello has only the last 4096 bytes of each output."""
    prefix = secrets.token_hex(4)
    async with session(client, runner_pod) as talk:
        for number in range(300):
            spec = shell(f"{prefix}/{number}/agent", "head -c 5000 /dev/zero | tr '\\0' '\\1'; printf 1 >/tmp/r")
            await finished(talk, {**spec, "captures": [{"path": "/tmp/r", "maxBytes": 100}]})
        started = time.monotonic()
        hello = await talk.hello()
        print(f"hello with {len(hello.records)} records: {time.monotonic() - started:.2f} s")
    results = [PhaseResult.from_record(record) for record in hello.records if record.id.startswith(prefix)]
    rewards = [result.captures["/tmp/r"] for result in results]
    assert [(len(result.tail), reward and reward.data) for result, reward in zip(results, rewards, strict=True)] == (
        [(4096, b"1")] * 300
    )
