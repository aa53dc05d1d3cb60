"""Test why requests of a judge count as unanswered, at a gateway. No process of a trial can make its own failures look like those
of the provider."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from multistep.api.trial.models_spec import JudgeSpec
from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.engine.plan.role_plans import JudgePlan
from multistep.gateway.http import ask_model
from tests.support.world import manifest
from tests.unit.gateway.world import MODELS, World, world
from tests.unit.reconcile.test_model_gateway import gateway, start

OWN = "gpt-5-mini"


def spec(here: World, key: str = "OPENAI_API_KEY", model: str = f"openai/{OWN}", path: str = "/v1", **more: Any) -> dict[str, Any]:
    return {"model": model, "baseURL": here.model.url + path, "credentials": [{"name": key, "value": "sk"}], **more}


class Verification:
    """A run of a verification, whose judge has the URL and the token in `variables`."""

    def __init__(self, here: World, given: Mapping[str, Any]) -> None:
        self.here, self.ours = here, gateway(here)
        self.judge = JudgePlan(JudgeSpec.model_validate(given), {given["credentials"][0]["name"]: "sk-judge"})
        self.trial: MultiStepTrial = parse_trial({**manifest({"models": {"judge": given}}), "status": {"attempt": 1}})

    async def begin(self, access: str = "a") -> Verification:
        self.access = access
        self.variables = await self.ours.judge_variables(self.trial, self.judge, start(access))
        return self

    async def ask(self, suffix: str = "", **more: Any) -> int:
        return (await self.here.call("chat", suffix, token=self.variables["OPENAI_API_KEY"], **more)).status

    async def get(self, path: str) -> int:
        headers = {"Authorization": f"Bearer {self.variables['OPENAI_API_KEY']}"}
        async with self.here.http.get(f"http://127.0.0.1:{self.here.port}/{path}", headers=headers) as answer:
            return answer.status

    async def end(self) -> Mapping[str, Any]:
        return await self.ours.close_judge(self.trial, self.access, self.judge)

    async def cause(self) -> str | None:
        unanswered = (await self.end())["unanswered"]
        return None if unanswered is None else str(unanswered["cause"])


def checks(here: World) -> list[str]:
    return [each.model for each in here.model.entries if "Reply with the word" in each.body]


async def test_a_verification_that_got_all_answers_is_not_checked(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        run = await Verification(here, spec(here)).begin()
        assert await run.ask() == 200
        assert (await run.cause(), checks(here)) == (None, [])


@pytest.mark.parametrize(
    ("faults", "cause"),
    [
        (["-fail-500"], "Outage"),
        (["-drop"], "Outage"),
        (["-cut"], "Outage"),
        (["-fail-401"], "Configuration"),
        (["-fail-404"], "Configuration"),
        (["-fail-500", ""], "Provider"),
        (["-fail-404", ""], "Left"),
        (["-fail-401", ""], "Left"),
        (["-fail-404", "-fail-500"], "Outage"),
        (["-fail-500", "-fail-401"], "Configuration"),
    ],
)
async def test_a_failure_is_the_providers_or_the_configurations_only_if_the_operators_own_request_has_it(
    tmp_path: Path, faults: list[str], cause: str
) -> None:
    """The first fault is that of the judge's request, the second one that of the operator's."""
    async with world(tmp_path, hold_seconds=0.5) as here:
        here.model.faults = faults
        run = await Verification(here, spec(here)).begin()
        await run.ask()
        here.model.faults = faults[1:] or faults
        assert await run.cause() == cause


async def test_requests_of_which_a_part_fails_in_each_run_are_no_failure_of_the_step(tmp_path: Path) -> None:
    """The provider fails some requests and answers others, so that no run gets all answers. The operator's are answered, too."""
    async with world(tmp_path) as here:
        run = Verification(here, spec(here))
        causes = []
        for number, failing in enumerate(("say: one", "say: two", "say: three"), 1):
            await run.begin("a" if number == 1 else f"a/{number}")
            for text in ("say: one", "say: two"):
                here.model.faults = ["-fail-500"] if text == failing else []
                await run.ask(text=text)
            here.model.faults = []
            causes.append(await run.cause())
        assert causes == ["Provider", "Outage", None]


@pytest.mark.parametrize(("faults", "cause"), [(["-drop"], "Outage"), (["-drop", ""], "Budget"), ([""], "Budget")])
async def test_a_budget_that_an_outage_used_up_is_no_failure_of_the_step(tmp_path: Path, faults: list[str], cause: str) -> None:
    """A cut request counts with the most that it may have used, so that its repetition may have no room."""
    async with world(tmp_path) as here:
        here.model.faults = faults
        run = await Verification(here, spec(here, limits={"inputTokens": 4000})).begin()
        long = "say: hello\n" + "x" * 1500
        while await run.ask(text=long) != 400:
            pass
        unanswered = (await run.end())["unanswered"]
        assert (unanswered["cause"], len(checks(here)) > 0) == (cause, faults != [""])
        assert ("without a complete answer count with the most" in unanswered["message"]) == (faults != [""])


@pytest.mark.parametrize(("first", "cause"), [("say: hello", "Budget"), (None, "Request")])
async def test_a_budget_without_room_for_any_request_is_wrong_configuration(tmp_path: Path, first: str | None, cause: str) -> None:
    async with world(tmp_path) as here:
        run = await Verification(here, spec(here, limits={"inputTokens": 4000})).begin()
        if first is not None:
            assert await run.ask(text=first) == 200
        assert await run.ask(text="say: hello\n" + "x" * 5000) == 400
        assert (await run.cause(), checks(here)) == (cause, [])


@pytest.mark.parametrize("misuse", [lambda run: run.get("openai/v1/x"), lambda run: run.ask("-other-fail-404")])
async def test_requests_that_no_provider_would_answer_show_no_wrong_key_and_no_outage(
    tmp_path: Path, misuse: Callable[[Verification], Any]
) -> None:
    async with world(tmp_path) as here:
        run = await Verification(here, spec(here)).begin()
        await misuse(run)
        assert (await run.cause(), checks(here)) == ("Request", [])


@pytest.mark.parametrize(("seconds", "faults", "cause"), [(30.0, "", "Provider"), (0.2, "-slow-60000", "Outage")])
async def test_a_request_that_is_left_silently_is_an_outage_only_if_the_provider_is_silent_for_the_operator_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, faults: str, cause: str
) -> None:
    monkeypatch.setattr(ask_model, "ANSWER_SECONDS", seconds)
    monkeypatch.setattr("multistep.gateway.accounting.unanswered.SILENT_SECONDS", 0.0)
    async with world(tmp_path, drain_seconds=0.0) as here:
        run = await Verification(here, spec(here)).begin()
        asking = asyncio.create_task(run.ask("-slow-60000"))
        while not here.model.entries:
            await asyncio.sleep(0.01)  # the fake model reports no arrival
        asking.cancel()
        await asyncio.wait({asking})
        here.model.faults = [faults]
        assert await run.cause() == cause


async def test_the_operators_request_counts_for_the_judge_and_needs_no_room_in_its_budget(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.model.faults = ["-drop", ""]
        run = await Verification(here, spec(here, limits={"inputTokens": 4000})).begin()
        long = "say: hello\n" + "x" * 1500
        assert await run.ask(text=long) == 529
        assert await run.ask(text=f"{long}y") == 400  # the first request counts with the most that it may have used
        here.model.faults = []
        report = await run.end()
        charged = [each for each in here.model.entries if each.outcome == "answered"]
        assert report["unanswered"]["cause"] == "Provider"
        assert report["usage"]["inputTokens"] == sum(each.input for each in charged) > 0
        assert report["usage"]["outputTokens"] == sum(each.output for each in charged)
        assert report["usage"]["requests"] == len(here.model.entries)
        assert report["usage"]["incomplete"] == 1
        before = len(here.model.entries)
        again = await run.end()  # after a restart of the operator
        assert (again["unanswered"], again["usage"]["requests"]) == (report["unanswered"], report["usage"]["requests"])
        assert len(here.model.entries) == before


@pytest.mark.parametrize(
    ("api", "key", "path"),
    [("messages", "ANTHROPIC_API_KEY", ""), ("gemini", "GEMINI_API_KEY", ""), ("chat", "OPENAI_API_KEY", "/v1")],
)
async def test_each_provider_is_asked_in_its_own_format(tmp_path: Path, api: Any, key: str, path: str) -> None:
    async with world(tmp_path) as here:
        here.model.faults = ["-fail-500", ""]
        run = await Verification(here, spec(here, key, MODELS[api], path)).begin()
        assert (await here.call(api, token=run.variables[key])).status == 500
        assert await run.cause() == "Provider"
        asked, check = here.model.entries
        assert (check.api, check.model, check.key, check.status) == (asked.api, asked.model, "sk-judge", 200)
