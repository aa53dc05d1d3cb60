"""Services with a model provider's key are refused: their requests would count for no role of the trial."""

from __future__ import annotations

import pytest

from multistep.api.task.layout import MAIN, Service, Services
from multistep.engine.plan.plan import TrialEnv
from multistep.engine.plan.plan_services import placeholder
from multistep.engine.plan.uncounted_services import refuse_uncounted
from multistep.errors import UncountedModel
from tests.support.played import IMAGE, plan

FILE = "environment/docker-compose.yaml"


def service(name: str = "user", **environment: str) -> Service:
    return Service(name, image="user", names=(name,), environment=environment, line=3)


@pytest.mark.parametrize(
    ("environment", "variable"),
    [
        ({"OPENAI_API_KEY": "sk"}, "OPENAI_API_KEY"),
        ({"LITELLM_API_KEY": "sk", "MODEL": "gpt-5"}, "LITELLM_API_KEY"),
        ({"GOOGLE_API_KEY": "k", "OPENAI_BASE_URL": "http://llm:8000/v1"}, "GOOGLE_API_KEY"),
        ({"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": ""}, "ANTHROPIC_API_KEY"),
        ({"OPENAI_API_KEY": "sk", "OPENAI_BASE_URL": "https://api.openai.com/v1"}, "OPENAI_API_KEY"),
    ],
)
def test_a_service_with_a_providers_key_is_refused_by_name(environment: dict[str, str], variable: str) -> None:
    with pytest.raises(
        UncountedModel, match=rf"^{FILE}:3: services\.user\.environment\.{variable}: .* no role .* spec\.models\.user"
    ):
        refuse_uncounted(Services(FILE, (service("db"), service(**environment))))


@pytest.mark.parametrize(
    "found",
    [
        service(),
        service(OPENAI_API_KEY=""),
        service(OPENAI_API_KEY="none", OPENAI_BASE_URL="http://llm:8000/v1"),
        service(ANTHROPIC_API_KEY="k", ANTHROPIC_API_BASE="https://proxy.example"),
        service(MAIN, OPENAI_API_KEY="sk"),
    ],
)
def test_a_service_that_calls_no_provider_and_main_are_not(found: Service) -> None:
    refuse_uncounted(Services(FILE, (found,)))


def test_a_trial_whose_variables_give_a_service_a_key_has_no_plan() -> None:
    user = service(OPENAI_API_KEY=placeholder("OPENAI_API_KEY"))
    files = Services(FILE, (user,), variables={"OPENAI_API_KEY": f"{FILE}:3: services.user.environment.OPENAI_API_KEY"})
    assert plan(IMAGE, compose=files, env=TrialEnv(variables={"OPENAI_API_KEY": ""})).services
    with pytest.raises(UncountedModel):
        plan(IMAGE, compose=files, env=TrialEnv(variables={"OPENAI_API_KEY": "sk"}))
