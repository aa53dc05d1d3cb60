"""The operator's client of the model gateway reports the gateway's downtimes after a step's last request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from multistep.api.trial import parse_trial
from multistep.gateway.ledger import Ledger, Row
from tests.support.world import manifest
from tests.unit.gateway.world import world
from tests.unit.reconcile.test_model_gateway import CALL, gateway, hosted, reported, trial


async def test_a_downtime_after_the_steps_last_request_is_reported(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        token = (await gateway(here).variables(trial(), hosted(f"{here.model.url}/v1"), CALL))["OPENAI_API_KEY"]
        assert (await here.call("chat", token=token)).status == 200
        assert reported(await gateway(here).close(trial(), "other")).downtimes == ()
    async with world(tmp_path) as here:
        for step in ("a", "other"):
            found = reported(await gateway(here).close(trial(), step))
            ((began, ended),) = found.downtimes
            assert found.was_down(began - 10, began) and not found.was_down(began - 10, began - 1)
            assert found.was_down(ended + 1, ended + 2) and not found.was_down(ended + 60, ended + 70)
        later = replace(CALL, model_access="b")
        token = (await gateway(here).variables(trial(), hosted(f"{here.model.url}/v1"), later))["OPENAI_API_KEY"]
        assert (await here.call("chat", token=token)).status == 200
        assert reported(await gateway(here).close(trial(), "b")).downtimes == ()


async def test_the_downtime_in_which_a_steps_last_request_was_lost_is_reported(tmp_path: Path) -> None:
    """The provider never answered the lost request's model, so the loss alone is no evidence of a failure of the provider."""
    agent = {"name": "codex", "model": "openai/gpt-5-mini", "credentials": [{"name": "OPENAI_API_KEY", "value": "x"}]}
    other = parse_trial({**manifest({"agent": agent}), "status": {"attempt": 1}})
    async with world(tmp_path) as here:
        token = (await gateway(here).variables(other, hosted(f"{here.model.url}/v1"), CALL))["OPENAI_API_KEY"]
        assert (await here.call("chat", token=token)).status == 200
        file = here.settings.ledger_file
    ledger = Ledger(file)
    await ledger.beat()
    await ledger.write(Row("r", f"{other.metadata.uid}/1/a/agent", "", "codex", "openai", "gpt-5-nano", 1, 1, 0.0))
    ledger.stop()
    async with world(tmp_path) as here:
        told = reported(await gateway(here).close(other, "a"))
    assert (told.failure, told.usage.incomplete) == (None, 1)
    ((began, ended),) = told.downtimes
    assert told.was_down(began, ended)
