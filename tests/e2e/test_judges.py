"""Test verifiers that ask a model, in real pods with a scripted provider behind the model gateway."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hack import image
from hack.paths import digest_of
from localkube import targets
from localkube.config import load_config
from localkube.images import Build
from multistep.kube.resources import SWEEPS, TRIALS
from tests.e2e.given import IMAGE, Given, Object, Step, condition, finished, holds, trial
from tests.e2e.test_agents import KEY, ledger
from tests.e2e.test_provider_faults import FAULT_SECONDS, set_faults, until_failures
from tests.support import servers
from tests.support.machine import processes
from tests.support.waiting import eventually

ASK = """#!/bin/bash
# Asks the judge for a word by HTTP, without an SDK, and rewards the word.
host=${OPENAI_BASE_URL#http://} && path=/${host#*/} && host=${host%%/*}
body='{"model": "gpt-5", "stream": true, "max_completion_tokens": 50, '
body+='"messages": [{"role": "user", "content": "FAKE-MODEL\\nsay: pass\\nEND\\n"}]}'
grep -rqsa 'sk-providers[-]key' /proc/[0-9]*/environ /run /etc /tmp /logs /tests && exit 1
exec 3<>"/dev/tcp/${host%:*}/${host##*:}"
printf 'POST %s/chat/completions HTTP/1.1\\r\\nHost: %s\\r\\nAuthorization: Bearer %s\\r\\n' "$path" "$host" "$OPENAI_API_KEY" >&3
printf 'Content-Type: application/json\\r\\nConnection: close\\r\\nContent-Length: %s\\r\\n\\r\\n%s' "${#body}" "$body" >&3
[[ $(cat <&3) == *'"pass"'*'[DONE]'* ]] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""
# Ends a test.sh: waits until the test has searched the pod.
UNTIL_SEARCHED = "until [ -e /tmp/searched ]; do sleep 0.05; done; rm /tmp/searched\n"
SDKS = """
FROM {base}
USER 0
RUN echo '{rewardkit}' > /tmp/pins \\
 && pip --python /opt/multistep-host/bin/python install -q --no-cache-dir --no-deps --require-hashes -r /tmp/pins
"""  # the agent host's image has the other packages: litellm, and OpenAI's SDK
REWARDKIT = "harbor-rewardkit==0.2.3 --hash=sha256:f42f115961769cdb835db395751fa9bf7c7ad3b5088200d245e0e8c6954dc25f"
BY_REWARDKIT = "#!/bin/bash\nrewardkit /tests --workspace /tmp\n"
RUBRIC = """
[judge]
judge = "openai/gpt-5"
files = ["/tmp/answer.txt"]
[[criterion]]
description = "Is the answer correct?"
type = "binary"
"""
ANSWER = """#!/bin/sh
printf 'FAKE-MODEL\\nsay: {"score": "yes", "reasoning": "it is"}\\nEND\\n' > /tmp/answer.txt
"""
BY_OPENAI = """#!/bin/bash
python - > /logs/verifier/reward.txt <<'END'
import openai
messages = [{"role": "user", "content": "FAKE-MODEL\\nsay: pass\\nEND\\n"}]
answer = openai.OpenAI().chat.completions.create(model="gpt-5", messages=messages)
print(int(answer.choices[0].message.content == "pass"))
END
"""


async def judged(given: Given, model: servers.Server, **task: Any) -> dict[str, Any]:
    """Return the fields of a trial's spec that give its verifiers a judge."""
    key = {"openai": base64.b64encode(KEY.encode()).decode()}
    await given.applied({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": key})
    reference = {"secretKeyRef": {"name": "keys", "key": "openai"}}
    judge = {"model": "openai/gpt-5", "baseURL": f"{model.url}/v1", "limits": {"costUSD": 2.0}}
    return {"models": {"judge": {**judge, "credentials": [{"name": "OPENAI_API_KEY", "valueFrom": reference}]}}, **task}


async def has_answered(model: servers.Server, count: int) -> bool:
    """Return whether the model's provider has answered this many requests."""
    return [each["outcome"] for each in await ledger(model)] == ["answered"] * count


def found_in(pod: Object, text: bytes) -> list[str]:
    """Return where the text is in the pod's containers, as root of the node sees them."""
    return [place for place, content in contents(pod) if text in content]


def contents(pod: Object) -> Iterator[tuple[str, bytes]]:
    """Yield the memory of all processes of the pod, with their environments, and the files of its running containers."""
    for container in (*pod["spec"]["containers"], *pod["spec"]["initContainers"]):
        pids = processes(pod, name=container["name"])
        for pid in pids:
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                yield f"process {pid}", memory(pid)
        root = f"/proc/{pids[0]}/root" if pids else ""
        for top, directories, names in os.walk(root):
            directories[:] = [each for each in directories if top != root or each not in ("proc", "sys", "dev")]
            for path in map(Path(top).joinpath, names):
                with suppress(FileNotFoundError):  # it has been deleted
                    yield str(path), path.read_bytes() if path.is_file() and not path.is_symlink() else b""


def memory(pid: int) -> bytes:
    """Return the memory that a process can read."""
    found = bytearray()
    with Path(f"/proc/{pid}/mem").open("rb", 0) as file:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, rights = line.split()[:2]
            start, end = (int(each, 16) for each in place.split("-"))
            with suppress(OSError):  # the kernel's own pages
                found += os.pread(file.fileno(), end - start, start) if rights.startswith("r") else b""
    return bytes(found)


def sdks(directory: Path) -> str:
    """Build an image with rewardkit and OpenAI's SDK, load it into the cluster and return its name."""
    target = targets.choose(load_config())
    text = SDKS.format(base=image.ensure(target, image.AGENT_HOST), rewardkit=REWARDKIT)
    name, dockerfile = f"localhost/multistep-judges:{digest_of([], text)}", directory / "Dockerfile"
    dockerfile.write_text(text)
    target.engine.build(Build(name, directory, dockerfile))
    image.deliver(target, name)
    return name


async def test_a_verifier_asks_the_judge_without_the_key_and_its_usage_is_the_providers(
    given: Given, model: servers.Server
) -> None:
    found = await given.ended(trial(Step("one", test=ASK), Step("two", test=ASK), **await judged(given, model)))
    status = found["status"]
    assert condition(found, "Complete")["status"] == "True" and status["rewards"] == {"reward": 1.0}, status
    entries = await ledger(model)
    used = [each["judgeUsage"] for each in status["steps"]]
    assert [each["requests"] for each in used] == [1, 1] and len(entries) == 2
    assert sum(each["inputTokens"] for each in used) == sum(each["input"] for each in entries)
    assert status["judgeUsage"]["requests"] == 2 and "usage" not in status


async def test_a_provider_that_fails_at_first_costs_no_verdict_and_no_run_of_the_agent(given: Given, model: servers.Server) -> None:
    await set_faults(model, ("-fail-500", ""))
    found = await given.ended(trial(Step("one", test=ASK), **await judged(given, model)))
    status = found["status"]
    assert status["rewards"] == {"reward": 1.0} and status.get("attempts", []) == [], status
    assert status["judgeUsage"]["requests"] == len(await ledger(model)) > 2  # the operator has asked, too
    await set_faults(model, ())


@pytest.mark.long
async def test_rewardkit_and_openais_sdk_grade_without_a_network_and_root_finds_the_key_nowhere_in_the_pod(
    given: Given, model: servers.Server, tmp_path: Path
) -> None:
    made = trial(
        Step("rewardkit", solve=ANSWER, test=BY_REWARDKIT + UNTIL_SEARCHED),
        Step("openai", test=BY_OPENAI + UNTIL_SEARCHED),
        config={"environment": {"network_mode": "no-network"}},
        **await judged(given, model, environment={"image": await asyncio.to_thread(sdks, tmp_path)}),
    )
    made["spec"]["task"]["inline"]["files"]["steps/rewardkit/tests/quality.toml"] = RUBRIC
    name = (await given.applied(made))["metadata"]["name"]
    for answers in (1, 2):
        await eventually(partial(has_answered, model, answers))
        (pod,) = await given.pods(name)
        assert KEY not in str(pod)
        places = await asyncio.to_thread(found_in, pod, b"OPENAI_API_KEY")
        assert {each.startswith("process") for each in places} == {True, False}, "the search finds what is there"
        assert await asyncio.to_thread(found_in, pod, KEY.encode()) == []
        await given.in_pod(name, "touch", "/tmp/searched")
    status = (await given.until(name, finished))["status"]
    assert status.get("rewards") == {"reward": 1.0}, status
    entries, used = await ledger(model), [each["judgeUsage"] for each in status["steps"]]
    counts = [(each["requests"], each["inputTokens"], each["outputTokens"]) for each in used]
    assert counts == [(1, each["input"], each["output"]) for each in entries] and {each["key"] for each in entries} == {KEY}


@pytest.mark.long
async def test_a_minute_of_faults_of_the_provider_costs_no_trial_a_0_and_no_run_of_the_agent(
    given: Given, model: servers.Server
) -> None:
    await set_faults(model, ("-fail-429", "-fail-500", "-cut"))
    runs = ASK.replace("exec 3", "[ $(cat /tmp/runs) = one ] || exit 1\nexec 3", 1)
    made = trial(Step("one", solve="#!/bin/sh\necho one >> /tmp/runs\n", test=runs))
    sweep = {
        "tasks": [{"name": "judged", "inline": made["spec"]["task"]["inline"]}],
        "agents": [{"name": "oracle", "agent": {"name": "oracle"}}],
        "attempts": 8,
        "template": {"spec": {"environment": {"image": IMAGE}, **await judged(given, model)}},
    }
    named = {"apiVersion": SWEEPS.api_version, "kind": SWEEPS.kind, "metadata": {"name": "faults"}}
    await given.applied({**named, "spec": sweep})
    await asyncio.gather(until_failures(model, 8), asyncio.sleep(FAULT_SECONDS))  # the acceptance is a minute of faults
    await set_faults(model, ())
    found = await given.sweep_ended("faults")
    result = found["status"]["agents"][0]
    assert holds(found, "Complete") and (result["counted"], result["mean"]) == (8, 1.0), found["status"]
    trials = await given.client.list_all(TRIALS, given.namespace)
    assert [each["status"].get("attempts", []) for each in trials] == [[]] * 8
    seen = {each["status"] if each["outcome"] == "refused" else each["outcome"] for each in await ledger(model)}
    assert seen == {429, 500, "cut", "answered"}


@pytest.mark.long
async def test_requests_at_once_never_spend_more_than_the_judges_budget(given: Given, model: servers.Server) -> None:
    spec = await judged(given, model)
    spec["models"]["judge"]["limits"] = {"costUSD": 0.10}
    many = ASK.replace("#!/bin/bash", "#!/bin/bash\nask() {", 1).replace("gpt-5", "o1")
    many = many.replace(": 50,", ": 150,").replace("say: pass", "say: " + "word " * 100)
    many += "}\nfor _ in {1..12}; do ask & ask & ask & wait; done; ask\n"
    found = await given.ended(trial(Step("one", test=many), **spec))
    (step,) = found["status"]["steps"]
    assert step["exception"]["type"] == "JudgeBudgetExceededError", found["status"]
    prices = {"input": 15e-6, "output": 60e-6}  # US dollars per token of o1; cached tokens cost less
    spent = sum(each[name] * price for each in await ledger(model) for name, price in prices.items())
    assert 0.03 < step["judgeUsage"]["costUSD"] <= spent <= 0.10
