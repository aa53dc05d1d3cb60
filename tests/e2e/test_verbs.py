"""The verbs of the command line on the real cluster: list, shell, cp, retry, delete, open, and the verbs of sweeps."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from contextlib import suppress
from pathlib import Path

from multistep.kube.resources import TRIALS
from tests.e2e.given import Given, Object, Step, finished, reward, trial
from tests.e2e.test_cli import multistep

_PROGRAM = (sys.executable, "-c", "from multistep.cli.main import main; main()")
IMAGE = "debian:bookworm-slim"


async def in_shell(text: str, *arguments: str) -> tuple[int, str]:
    """Run a command with a text as stdin; return its exit code and stdout."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*_PROGRAM, *arguments, stdin=pipe, stdout=pipe, stderr=pipe)
    out, _ = await process.communicate(text.encode())
    return process.returncode or 0, out.decode()


def sweep(name: str, **spec: object) -> Object:
    """Return a sweep of one task and the oracle."""
    script = "#!/bin/sh\n"
    files = {"steps/a/instruction.md": "do it", "steps/a/solution/solve.sh": script, "steps/a/tests/test.sh": reward(1)}
    return {
        "apiVersion": "multistep.dev/v1alpha1",
        "kind": "TrialSweep",
        "metadata": {"name": name},
        "spec": {
            "tasks": [{"name": "t", "inline": {"config": {"steps": [{"name": "a"}]}, "files": files}}],
            "agents": [{"name": "o", "agent": {"name": "oracle"}}],
            "template": {"spec": {"environment": {"image": IMAGE}}},
            **spec,
        },
    }


async def test_a_kept_trial_is_listed_entered_copied_from_and_deleted(given: Given, tmp_path: Path) -> None:
    manifest = trial(Step("a", solve="#!/bin/sh\necho done > /tmp/notes.txt\n"), podCleanup="Never")
    name, there = manifest["metadata"]["name"], ("-n", given.namespace)
    await given.ended(manifest)
    code, out, _ = await multistep("list", *there, "--phase", "complete", "-o", "json")
    assert (code, [each["metadata"]["name"] for each in json.loads(out)["items"]]) == (0, [name])
    code, out, _ = await multistep("list", *there)
    assert out.splitlines()[0].startswith("NAME") and out.splitlines()[1].startswith(name)

    assert await in_shell("cat /tmp/notes.txt; exit 7\n", "shell", name, *there) == (7, "done\n")
    code, out, err = await multistep("shell", name, *there, "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (code, out, err) == (3, "out\n", "err\n")
    code, _, err = await multistep("cp", f"{name}:/tmp/notes.txt", str(tmp_path / "copied"), *there)
    assert code == 0, err
    assert (tmp_path / "copied" / "notes.txt").read_text() == "done\n"
    code, _, err = await multistep("cp", f"{name}:/tmp/none", str(tmp_path / "none"), *there)
    assert code == 2 and "/tmp/none" in err

    code, out, err = await multistep("open", "--no-browser", name, *there)
    assert code == 0, err
    assert (Path(out.strip()) / "result.json").is_file()

    assert (await multistep("delete", name, *there))[0] == 2  # without a terminal, --yes is required
    assert (await multistep("delete", "--yes", name, *there))[0] == 0
    code, _, err = await multistep("shell", name, *there)
    assert code == 2 and "does not exist" in err


def all_of(leader: int) -> str:
    """Return all that a terminal shows. The kernel may pass the last output on only after the program has ended."""
    shown = b""
    with suppress(OSError):  # EIO after the last output
        while chunk := os.read(leader, 65536):
            shown += chunk
    return shown.decode()


async def test_a_shell_on_a_terminal_is_interactive(given: Given) -> None:
    manifest = trial(Step("a"), podCleanup="Never")
    await given.ended(manifest)
    leader, follower = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *_PROGRAM, "shell", manifest["metadata"]["name"], "-n", given.namespace, stdin=follower, stdout=follower, stderr=follower
    )
    os.close(follower)
    os.write(leader, b"tty; echo size $(stty size | wc -w)\nexit 5\n")
    code = await process.wait()
    shown = await asyncio.to_thread(all_of, leader)
    os.close(leader)
    assert code == 5 and "/dev/pts/" in shown and "size 2" in shown


async def test_a_trial_whose_pod_is_gone_has_no_shell(given: Given) -> None:
    manifest = trial(Step("a"))
    await given.ended(manifest)
    await given.without_pods(manifest["metadata"]["name"])
    code, _, err = await multistep("shell", manifest["metadata"]["name"], "-n", given.namespace)
    assert code == 2 and "--keep" in err


async def test_a_trial_without_a_score_runs_again_and_outlives_the_first(given: Given) -> None:
    manifest = trial(Step("a"), activeDeadlineSeconds=1)
    manifest["spec"]["environment"]["image"] = "localhost/none:1"
    await given.ended(manifest)
    name, there = manifest["metadata"]["name"], ("-n", given.namespace)
    code, out, err = await multistep("retry", name, *there)
    assert (code, out) == (0, f"{name}-r1\n"), err
    await given.until(f"{name}-r1", finished)
    assert (await multistep("retry", f"{name}-r1", *there))[1] == f"{name}-r2\n"
    scored = trial(Step("a", solve="#!/bin/sh\n", test=reward(1)))
    await given.ended(scored)
    code, _, err = await multistep("retry", scored["metadata"]["name"], *there)
    assert code == 2 and "has a score" in err


async def test_exactly_the_excluded_trials_of_a_sweep_run_again(given: Given, tmp_path: Path) -> None:
    """The trials wait for a ConfigMap. Two of them are stopped, so the sweep excludes them. A retry of each then counts instead."""
    there, selector = ("-n", given.namespace), "multistep.dev/sweep=again"
    waits = {"name": "X", "valueFrom": {"configMapKeyRef": {"name": "later", "key": "x"}}}
    agents = [{"name": "o", "agent": {"name": "oracle", "env": [waits]}}]
    await given.applied(sweep("again", attempts=3, parallelism=3, agents=agents))
    await given.sweep_until("again", lambda each: (each.get("status") or {}).get("trials", {}).get("created") == 3)
    made = await given.client.list_all(TRIALS, given.namespace, label_selector=selector)
    stopped = sorted(each["metadata"]["name"] for each in made)[:2]
    for each in stopped:
        await given.client.patch(TRIALS, given.namespace, each, {"spec": {"stop": True}})
        await given.until(each, finished)
    await given.applied({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "later"}, "data": {"x": "1"}})
    ended = await given.sweep_ended("again")
    assert ended["status"]["excluded"] == {"User": 2}
    code, out, err = await multistep("sweep", "retry", "again", "--excluded", *there)
    assert (code, sorted(out.split())) == (0, stopped), err
    code, out, err = await multistep("sweep", "status", "again", "--follow", "-o", "json", *there)
    assert code == 0, err
    trials = json.loads(out)["status"]["trials"]
    assert (trials["total"], trials["counted"], trials["retried"]) == (3, 3, 2)
    assert len(await given.client.list_all(TRIALS, given.namespace, label_selector=selector)) == 5
    report = tmp_path / "again.json"
    assert (await multistep("sweep", "report", "again", "-o", str(report), *there))[0] == 0
    document = json.loads(report.read_text())
    assert (len(document["trials"]), document["retried"]) == (3, 2)
    assert [each["counted"] for each in document["agents"]] == [3]


async def test_a_sweep_is_listed_stopped_opened_and_deleted(given: Given) -> None:
    there = ("-n", given.namespace)
    await given.applied(sweep("long", attempts=20, parallelism=1))
    assert (await multistep("sweep", "list", "-o", "name", *there))[1] == "long\n"
    code, _, err = await multistep("sweep", "stop", "long", *there)
    assert code == 0 and "long: Failed: Stopped" in err
    assert "long Failed" in (await multistep("show", "long", *there))[1]
    code, out, err = await multistep("open", "--no-browser", "long", *there)
    assert code == 0, err
    assert "Sweep long" in await asyncio.to_thread(Path(out.strip()).read_text)
    assert (await multistep("sweep", "delete", "--yes", "long", *there))[0] == 0
    assert (await multistep("sweep", "list", "-o", "name", *there))[1] == ""
