"""Test `multistep logs`: it reads from runners and stored results, across steps and attempts, and escapes output for terminals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.api.trial.status import TrialStatus
from multistep.cli.trial import follow_output
from multistep.cli.trial import output_formats as print_logs
from multistep.cli.trial.output_formats import MAX_LINE_CHARACTERS, Escaped, Json, Piece, Raw, Readable, Tail, Wanted, pieces
from multistep.errors import ClusterError, StreamLost, UsageError
from multistep.kube.resources import Resource
from multistep.logs import escaped
from tests.support.fake_runner import FakeRunner

from .conftest import Invoke
from .fakes import RESULTS, RESULTS_PATH, CliCluster, status, step

AGENT = Piece(1, 1, "a", "agent")
POD: dict[str, Any] = {"podName": "t-1", "podUID": "pod-uid", "attempt": 1}


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_output, "_PAUSE_SECONDS", 0.0)


def running(runner: FakeRunner, id: str, text: bytes, *, done: bool = True) -> None:
    """Add a phase with the output ``text`` to a fake runner. done: whether the phase has finished."""
    runner.answer({"op": "start", "id": id})
    runner.printed[id] = text
    if done:
        runner.end(id)


def story(cluster: CliCluster, *reported: dict[str, Any], agent: str = "oracle") -> None:
    """Create trial "t". Each read of it returns the next status of ``reported``; later reads return the last status."""
    cluster.put("MultiStepTrial", "t", spec={"agent": {"name": agent}}, status=reported[0])
    left = iter(reported)
    get, last = cluster.get, reported[-1]

    async def get_trial(resource: Resource, namespace: str | None, name: str) -> dict[str, Any]:
        found = await get(resource, namespace, name)
        return {**found, "status": next(left, last)}

    cluster.get = get_trial  # type: ignore[method-assign]


def stored(cluster: CliCluster, path: str, data: bytes, offset: int = 0) -> None:
    cluster.served[f"{RESULTS_PATH}/files/{path}?offset={offset}&limit={print_logs.MAX_TAIL_BYTES}"] = data


RUNNING = status("Running", step("a", "Agent"), **POD)
COMPLETE = status("Complete", step("a"), results=RESULTS, **POD)
TWO_STEPS = status("Running", step("a"), step("b", "Agent"), **POD)


def test_a_running_pod_is_asked_and_nothing_is_acknowledged(cluster: CliCluster, invoke: Invoke) -> None:
    runner = cluster.runners["t-1"] = FakeRunner()
    running(runner, "1/a/setup", b"made\n")
    running(runner, "1/a/agent", b"work\n", done=False)
    story(cluster, RUNNING)
    done = invoke("logs", "t")
    assert (done.exit_code, done.stdout) == (0, "==> step 1 a, setup <==\nmade\n==> step 1 a, agent <==\nwork\n")
    assert {each["op"] for each in runner.requests[2:]} == {"hello", "output"} and not runner.records["1/a/setup"]["acknowledged"]
    assert runner.requests[2]["records"] is False and all(stream.closed for stream in runner.streams)


HOSTILE = b"\x1b]0;owned\x07\xff\x00\xc2\x9b31m" * 2000


def test_one_piece_has_no_title_and_with_raw_all_of_its_bytes(cluster: CliCluster, invoke: Invoke) -> None:
    text = (HOSTILE + b"\r\n") * 20  # more bytes than one request returns
    runner = cluster.runners["t-1"] = FakeRunner()
    running(runner, "1/a/agent", text, done=False)
    story(cluster, RUNNING)
    for name in ("1", "a"):
        assert invoke("logs", "t", "--step", name, "--phase", "agent", "--raw").stdout_bytes == text


def test_a_pipe_gets_whole_lines_without_control_characters(cluster: CliCluster, invoke: Invoke) -> None:
    runner = cluster.runners["t-1"] = FakeRunner()
    running(runner, "1/a/agent", HOSTILE + b"\nlast", done=False)
    story(cluster, RUNNING)
    piped = invoke("logs", "t", "--step", "1", "--phase", "agent").stdout_bytes
    assert piped == b"^[]0;owned^G\\xff^@<U+009B>31m" * 2000 + b"\nlast"


def test_the_results_are_read_when_the_pod_is_gone(cluster: CliCluster, invoke: Invoke) -> None:
    story(cluster, COMPLETE)
    stored(cluster, "steps/a/setup.txt", b"made\n")
    stored(cluster, "steps/a/agent/command.txt", b"work")
    stored(cluster, "steps/a/verifier/test-stdout.txt", b"fine\n")
    done = invoke("logs", "t", "-f")
    assert done.exit_code == 0 and "agent <==\nwork\n==> step 1 a, verifier <==\nfine\n" in done.stdout


def test_a_single_step_and_an_earlier_attempt_are_found_where_they_are_stored(cluster: CliCluster, invoke: Invoke) -> None:
    lost = {"number": 1, "steps": [step("", "Agent")]}
    story(cluster, status("Complete", step(""), results=RESULTS, attempts=[lost], **(POD | {"attempt": 2})))
    stored(cluster, "agent/oracle.txt", b"second\n")
    stored(cluster, "attempts/1/agent/oracle.txt", b"first\n")
    assert "second" in invoke("logs", "t").stdout and "first" not in invoke("logs", "t").stdout
    assert "first" in invoke("logs", "t", "--attempt", "1").stdout
    refused = invoke("logs", "t", "--attempt", "3")
    assert refused.exit_code == 2 and "attempt 3 does not exist: the trial has 1, 2" in refused.stderr


def test_following_goes_over_broken_streams_steps_and_the_pods_end_and_shows_nothing_twice(
    cluster: CliCluster, invoke: Invoke
) -> None:
    runner = cluster.runners["t-1"] = FakeRunner()
    looks = iter(
        [
            lambda: running(runner, "1/a/agent", b"one\n", done=False),
            lambda: setattr(cluster, "exec_fails", StreamLost("cut")),
            lambda: setattr(cluster, "exec_fails", None),
            lambda: running(runner, "1/a/agent", b"one\ntwo\n"),
            lambda: running(runner, "1/b/agent", b"three\n", done=False),
            cluster.runners.clear,
        ]
    )
    story(
        cluster,
        RUNNING,
        RUNNING,
        RUNNING,
        RUNNING,
        TWO_STEPS,
        TWO_STEPS,
        status("Complete", *TWO_STEPS["steps"], results=RESULTS, **POD),
    )
    reported = cluster.get

    async def get_trial(resource: Resource, namespace: str | None, name: str) -> dict[str, Any]:
        next(looks, lambda: None)()
        return await reported(resource, namespace, name)

    cluster.get = get_trial  # type: ignore[method-assign]
    stored(cluster, "steps/b/agent/oracle.txt", b"four\n", offset=6)
    done = invoke("logs", "-f", "t", "--phase", "agent")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "==> step 1 a, agent <==\none\ntwo\n==> step 2 b, agent <==\nthree\nfour\n"


def test_following_continues_with_the_next_attempt_and_shows_what_is_lost(cluster: CliCluster, invoke: Invoke) -> None:
    first, second = FakeRunner(), FakeRunner("pod-2")
    running(first, "1/a/agent", b"first\n", done=False)
    running(second, "2/a/agent", b"second\n", done=False)
    cluster.runners |= {"t-1": first, "t-2": second}
    lost = {"number": 1, "steps": [step("a", "Agent")]}
    again: dict[str, Any] = {"attempts": [lost], "attempt": 2, "podName": "t-2", "podUID": "pod-2"}
    story(
        cluster,
        RUNNING,
        status("Running", step("a", "Agent"), **again),
        status("Failed", step("a"), reason="BackoffLimit", **again),
    )
    done = invoke("logs", "-f", "t")
    assert done.exit_code == 3
    assert done.stdout == "==> step 1 a, agent <==\nfirst\n==> step 1 a, agent, attempt 2 <==\nsecond\n"
    assert "attempt 1 finished and its pod was deleted" in done.stderr


LOST = {"number": 1, "steps": [step("a"), step("b", "Agent")]}
CONTINUED: dict[str, Any] = {
    "attempts": [LOST],
    "attempt": 2,
    "podName": "t-2",
    "podUID": "pod-2",
    "resumed": {"after": "a", "attempts": [1], "digest": "d"},
}


def test_the_output_of_a_kept_step_is_that_of_the_attempt_that_ran_it(cluster: CliCluster, invoke: Invoke) -> None:
    story(cluster, status("Complete", step("a"), step("b"), results=RESULTS, **CONTINUED))
    stored(cluster, "steps/a/agent/oracle.txt", b"kept\n")
    stored(cluster, "steps/b/agent/oracle.txt", b"again\n")
    stored(cluster, "attempts/1/steps/b/agent/oracle.txt", b"lost\n")
    whole = "==> step 1 a, agent <==\nkept\n==> step 2 b, agent, attempt 2 <==\nagain\n"
    assert invoke("logs", "t").stdout == invoke("logs", "t", "--attempt", "2").stdout == whole
    assert invoke("logs", "t", "--attempt", "1").stdout == "==> step 1 a, agent <==\nkept\n==> step 2 b, agent <==\nlost\n"
    assert invoke("logs", "t", "--step", "a", "--phase", "agent").stdout == "kept\n"


def test_the_output_of_a_step_that_another_trial_ran_is_not_looked_for(cluster: CliCluster, invoke: Invoke) -> None:
    start = {**CONTINUED, "attempts": [], "attempt": 1, "resumed": {"after": "a", "attempts": [0], "digest": "d"}}
    story(cluster, status("Complete", step("a", trial="base"), step("b"), results=RESULTS, **start))
    stored(cluster, "steps/b/agent/oracle.txt", b"own\n")
    assert invoke("logs", "t").stdout == "==> step 2 b, agent <==\nown\n"


def test_following_shows_the_output_of_a_kept_step_once(cluster: CliCluster, invoke: Invoke) -> None:
    first, second = FakeRunner(), FakeRunner("pod-2")
    running(first, "1/a/agent", b"kept\n")
    running(first, "1/b/agent", b"lost\n", done=False)
    running(second, "2/b/agent", b"again\n", done=False)
    cluster.runners |= {"t-1": first, "t-2": second}
    steps = step("a"), step("b", "Agent")
    story(
        cluster,
        status("Running", *steps, **POD),
        status("Running", *steps, **CONTINUED),
        status("Complete", *steps, results=RESULTS, **CONTINUED),
    )
    stored(cluster, "steps/a/agent/oracle.txt", b"kept\n")
    shown = invoke("logs", "-f", "t").stdout
    assert shown == ("==> step 1 a, agent <==\nkept\n==> step 2 b, agent <==\nlost\n==> step 2 b, agent, attempt 2 <==\nagain\n")


def test_without_the_right_to_exec_it_prints_an_error_and_following_waits(cluster: CliCluster, invoke: Invoke) -> None:
    cluster.runners["t-1"] = FakeRunner()
    cluster.exec_fails = ClusterError("forbidden", status=403)
    story(cluster, RUNNING)
    done = invoke("logs", "t")
    assert done.exit_code == 2 and "get and create on pods/exec in namespace 'default'" in done.stderr
    story(cluster, RUNNING, RUNNING, COMPLETE)
    stored(cluster, "steps/a/agent/oracle.txt", b"work\n")
    done = invoke("logs", "-f", "t")
    assert done.exit_code == 0 and done.stdout == "==> step 1 a, agent <==\nwork\n" and done.stderr.count("pods/exec") == 1


def test_a_separate_verifier_is_asked_in_its_own_pod(cluster: CliCluster, invoke: Invoke) -> None:
    cluster.runners |= {"t-1": FakeRunner(), "v-1": FakeRunner("v-uid")}
    running(cluster.runners["v-1"], "1/a/verifier/verifier", b"judged\n", done=False)
    story(cluster, status("Running", step("a", "Verifier"), verifier={"podName": "v-1", "podUID": "v-uid"}, **POD))
    assert invoke("logs", "t", "--phase", "verifier").stdout == "==> step 1 a, verifier <==\njudged\n"


def test_a_step_that_never_started_is_an_error_that_names_those_that_did(cluster: CliCluster, invoke: Invoke) -> None:
    story(cluster, COMPLETE)
    done = invoke("logs", "t", "--step", "zzz")
    assert done.exit_code == 2 and "has not started step 'zzz'; started steps: 1 a" in done.stderr


def test_a_trial_without_a_pod_has_printed_nothing_yet(cluster: CliCluster, invoke: Invoke) -> None:
    story(cluster, status("Pending", reason="Queued", message="no room"))
    done = invoke("logs", "t")
    assert (done.exit_code, done.stdout) == (0, "") and "is Pending: Queued: no room" in done.stderr


def test_a_finished_trial_that_printed_nothing_says_how_it_ended(cluster: CliCluster, invoke: Invoke) -> None:
    story(
        cluster, {**COMPLETE, **status("Complete", step("a"), message="ended with HealthcheckError: 'up' failed", results=RESULTS)}
    )
    assert invoke("logs", "t").stderr == "nothing was printed: ended with HealthcheckError: 'up' failed\n"


def test_a_trial_that_is_deleted_meanwhile_is_exit_code_3(cluster: CliCluster, invoke: Invoke) -> None:
    runner = cluster.runners["t-1"] = FakeRunner()
    running(runner, "1/a/agent", b"x", done=False)
    story(cluster, RUNNING)
    reported, looks = cluster.get, iter([1, 2])

    async def get_trial(resource: Resource, namespace: str | None, name: str) -> dict[str, Any]:
        if next(looks, None) is None:
            cluster.objects.clear()
        return await reported(resource, namespace, name)

    cluster.get = get_trial  # type: ignore[method-assign]
    assert invoke("logs", "-f", "t").exit_code == 3


def test_the_last_lines_only_then_what_comes(cluster: CliCluster, invoke: Invoke) -> None:
    runner = cluster.runners["t-1"] = FakeRunner()
    running(runner, "1/a/agent", b"".join(b"%d\n" % n for n in range(1000)) + b"rest", done=False)
    story(cluster, RUNNING)
    assert invoke("logs", "t", "--step", "1", "--phase", "agent", "--tail", "2").stdout == "999\nrest"
    assert invoke("logs", "t", "--step", "1", "--phase", "agent", "--tail", "0").stdout == ""


def test_json_is_one_object_a_line(cluster: CliCluster, invoke: Invoke) -> None:
    story(cluster, COMPLETE)
    stored(cluster, "steps/a/agent/oracle.txt", b"\x1b[31mred\r\n\xff\n" + b"x" * (MAX_LINE_CHARACTERS + 5))
    lines = [json.loads(line) for line in invoke("logs", "t", "-o", "json").stdout.splitlines()]
    assert [line["text"] for line in lines] == ["\x1b[31mred", "\\xff", "x" * MAX_LINE_CHARACTERS]
    assert lines[0] == {"attempt": 1, "step": "a", "phase": "agent", "text": "\x1b[31mred"} and lines[2]["charactersLeftOut"] == 5


def test_pieces_come_in_the_order_they_happen() -> None:
    found = pieces(TrialStatus.model_validate(TWO_STEPS), Wanted())
    assert [(each.step, each.phase) for each in found] == [
        ("", "healthcheck"),
        *((name, phase) for name in "ab" for phase in ("setup", "healthcheck", "agent", "verifier")),
    ]
    with pytest.raises(UsageError):
        pieces(TrialStatus.model_validate(TWO_STEPS), Wanted(attempt=9))


def chunked(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def on_terminal(data: bytes, size: int = 1 << 20) -> str:
    out: list[bytes] = []
    form = Escaped(out.append, titles=False)
    form.start(AGENT)
    for chunk in chunked(data, size):
        form.show(chunk)
    form.close()
    return b"".join(out).decode()


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_a_terminal_gets_nothing_to_obey(size: int) -> None:
    hostile = "\x1b]0;t\x07 \x9b31m \u202egnp.exe a\r\nb\rc\td é 日\n".encode() + b"\xff\xe6\n"
    assert on_terminal(hostile, size) == "^[]0;t^G <U+009B>31m <U+202E>gnp.exe a\nb^Mc\td é 日\n\\xff\\xe6\n"


@given(st.binary(max_size=300), st.integers(1, 50))
def test_whatever_is_printed_a_terminal_gets_printable_text_only(data: bytes, size: int) -> None:
    assert all(char.isprintable() or char in "\n\t" for char in on_terminal(data, size))
    assert on_terminal(data, size) == on_terminal(data)


def test_a_giant_line_is_cut_and_the_next_one_is_whole() -> None:
    shown = on_terminal(b"x" * 5_000_000 + b"\nnext\n", 70_000)
    assert shown == "x" * MAX_LINE_CHARACTERS + f"[... {5_000_000 - MAX_LINE_CHARACTERS} more characters]\nnext\n"


@given(st.binary(max_size=300), st.integers(1, 50))
def test_the_raw_form_is_the_bytes(data: bytes, size: int) -> None:
    out: list[bytes] = []
    form = Raw(out.append, titles=False)
    form.start(AGENT)
    for chunk in chunked(data, size):
        form.show(chunk)
    form.close()
    assert b"".join(out) == data


@given(st.binary(max_size=200), st.integers(1, 50))
def test_json_does_not_depend_on_how_the_bytes_come(data: bytes, size: int) -> None:
    def shown(by: int) -> list[bytes]:
        out: list[bytes] = []
        form = Json(out.append)
        form.start(AGENT)
        for chunk in chunked(data, by):
            form.show(chunk)
        form.end()
        form.close()
        return out

    assert shown(size) == shown(1000)
    assert all(json.loads(line)["phase"] == "agent" for line in shown(size))


OTHER = b'{"type":"x"}\nplain {"type":"x"}\n{"ty'
STREAM_JSON = b'{"type":"assistant","message":{"content":[{"type":"text","text":"I look."}]}}\n' + OTHER


@pytest.mark.parametrize("size", [1, 7, 40, 1000])
@pytest.mark.parametrize(("phase", "text"), [("agent", b"I look.\n" + OTHER), ("verifier", STREAM_JSON)])
def test_the_json_of_an_agent_is_text_however_it_comes(phase: str, text: bytes, size: int) -> None:
    out: list[bytes] = []
    form = Readable(Raw(out.append, titles=False))
    for part in chunked(STREAM_JSON, size):
        form.start(Piece(1, 1, "a", phase))
        form.show(part)
    form.close()
    assert b"".join(out) == text


def test_the_json_of_an_agent_is_text_unless_the_original_bytes_are_wanted(cluster: CliCluster, invoke: Invoke) -> None:
    story(cluster, RUNNING)
    runner = cluster.runners["t-1"] = FakeRunner()
    running(runner, "1/a/agent", STREAM_JSON)
    assert "I look." in invoke("logs", "t").stdout.splitlines()
    assert STREAM_JSON.decode() in invoke("logs", "t", "--raw").stdout


@given(st.lists(st.binary(max_size=20), max_size=10), st.integers(0, 5))
def test_a_tail_is_the_last_lines_however_they_come(parts: list[bytes], lines: int) -> None:
    tail = Tail(lines)
    for each in parts:
        tail.add(each)
    whole = b"".join(parts).split(b"\n")
    ended = [line + b"\n" for line in whole[:-1]] + ([whole[-1]] if whole[-1] else [])
    assert tail.last() == b"".join(ended[-lines:] if lines else [])


def test_titles_cannot_be_forged_by_a_steps_name() -> None:
    assert escaped("a\x1b[2Jb") == "a^[[2Jb"


def test_a_runner_of_an_earlier_release_is_waited_for(cluster: CliCluster, invoke: Invoke) -> None:
    cluster.runners["t-1"] = FakeRunner()
    cluster.runners["t-1"].protocols = {1}
    story(cluster, RUNNING)
    done = invoke("logs", "t")
    assert done.exit_code == 2 and "earlier release" in done.stderr


# -- agents of Harbor, which the agent host runs


def test_the_output_of_an_agent_of_harbor_is_read_from_its_host(cluster: CliCluster, invoke: Invoke) -> None:
    environment, host = cluster.runners["t-1"], cluster.runners["t-1/agent-host"] = FakeRunner(), FakeRunner()
    running(environment, "1/a/setup", b"made\n")
    running(host, "1/a/host/agent", b"thinking\n")
    running(environment, "1/a/verifier", b"tested\n")
    running(host, "1/b/host/agent", b"more\n", done=False)
    running(environment, "1/b/verifier", b"not yet\n")
    story(cluster, TWO_STEPS, agent="claude-code")
    done = invoke("logs", "t")
    shown = {"step 1 a, setup": "made", "step 1 a, agent": "thinking", "step 1 a, verifier": "tested", "step 2 b, agent": "more"}
    assert (done.exit_code, done.stdout) == (0, "".join(f"==> {title} <==\n{text}\n" for title, text in shown.items()))
    assert not any(each["acknowledged"] for each in host.records.values())


def test_the_output_of_an_agent_of_harbor_is_followed_into_the_results(cluster: CliCluster, invoke: Invoke) -> None:
    cluster.runners["t-1"], host = FakeRunner(), FakeRunner()
    cluster.runners["t-1/agent-host"] = host
    running(host, "1/a/host/agent", b"thinking\n", done=False)
    stored(cluster, "steps/a/agent/output.txt", b"done\n", offset=9)
    story(cluster, RUNNING, RUNNING, COMPLETE, agent="claude-code")
    done = invoke("logs", "-f", "t")
    assert done.stdout == "==> step 1 a, agent <==\nthinking\ndone\n"


def test_the_output_of_an_agent_of_harbor_is_read_from_the_results(cluster: CliCluster, invoke: Invoke) -> None:
    stored(cluster, "steps/a/agent/output.txt", b"thinking\n")
    story(cluster, COMPLETE, agent="claude-code")
    assert invoke("logs", "t", "--step", "1", "--phase", "agent").stdout == "thinking\n"
