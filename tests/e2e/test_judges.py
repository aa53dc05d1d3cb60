"""Test verifiers that ask a model, in real pods with a scripted provider behind the model gateway."""

from __future__ import annotations

import base64
from typing import Any

from tests.e2e.given import Given, Step, condition, trial
from tests.e2e.test_agents import KEY, ledger
from tests.e2e.test_provider_faults import set_faults
from tests.support import servers

ASK = """#!/bin/bash
# Asks the judge for a word by HTTP, without an SDK, and rewards the word.
host=${OPENAI_BASE_URL#http://} && path=/${host#*/} && host=${host%%/*}
body='{"model": "gpt-5", "max_completion_tokens": 50, "messages": [{"role": "user", "content": "FAKE-MODEL\\nsay: pass\\nEND\\n"}]}'
grep -rqsa 'sk-providers[-]key' /proc/[0-9]*/environ /run /etc /tmp /logs /tests && exit 1
exec 3<>"/dev/tcp/${host%:*}/${host##*:}"
printf 'POST %s/chat/completions HTTP/1.1\\r\\nHost: %s\\r\\nAuthorization: Bearer %s\\r\\n' "$path" "$host" "$OPENAI_API_KEY" >&3
printf 'Content-Type: application/json\\r\\nConnection: close\\r\\nContent-Length: %s\\r\\n\\r\\n%s' "${#body}" "$body" >&3
grep -q '"pass"' <&3 && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""


async def judged(given: Given, model: servers.Server, **task: Any) -> dict[str, Any]:
    """Return the fields of a trial's spec that give its verifiers a judge."""
    key = {"openai": base64.b64encode(KEY.encode()).decode()}
    await given.applied({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": key})
    reference = {"secretKeyRef": {"name": "keys", "key": "openai"}}
    judge = {"model": "openai/gpt-5", "baseURL": f"{model.url}/v1", "limits": {"costUSD": 1.0}}
    return {"models": {"judge": {**judge, "credentials": [{"name": "OPENAI_API_KEY", "valueFrom": reference}]}}, **task}


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
