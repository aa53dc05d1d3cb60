"""The models of a trial by role, beside its agent's: the judge of the steps, and the simulated user."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from multistep import providers
from multistep.api.common.base_model import EnvVars, Model, cel
from multistep.api.trial import harbor_agents
from multistep.api.trial.agent_spec import AgentSpec, ModelLimits, known_agent, option_problems
from multistep.api.trial.values import BUILT_IN

_KEYS: Final = ", ".join(providers.BY_KEY_VARIABLE)
_VARIABLE: Final = re.compile(r"{{-?\s*(\w+)")
_OF_PROMPTS: Final = {"bridge_instructions", "instruction", "persona"}


class RoleSpec(Model):
    """The model of a role, which the role's programs call through the model gateway."""

    model: Annotated[str, Field(pattern=r"^[!-~]+$", max_length=512)]
    """Model as PROVIDER/NAME, such as openai/gpt-5-mini: the one whose rejection or outage ends the trial."""
    credentials: Annotated[EnvVars, Field(min_length=1)]
    """Variables with the providers' keys, such as OPENAI_API_KEY; at most one of each provider."""
    base_url: Annotated[str | None, Field(alias="baseURL", pattern=r"^https?://", max_length=2048)] = None
    """URL of the model's API, if it is not the provider's own."""
    provider_tools: Literal["Allow", "Refuse"] = "Allow"
    """Refuse: the model gateway refuses requests that use tools of the provider, or files that it fetches by URL."""
    other_models: Literal["Allow", "Refuse"] = "Allow"
    """Refuse: the model gateway refuses requests for other models than ``model``, so that no other one grades or plays the user."""
    limits: ModelLimits | None = None
    """Budget of the role's requests in the whole trial, over all steps and attempts. The model gateway refuses a request that
    might exceed it."""

    @property
    def allowed_models(self) -> Sequence[str]:
        """Return the names of the only models that may be requested: the model's, with its provider and without; () for any."""
        return () if self.other_models == "Allow" else (self.model, *filter(None, (self.model.partition("/")[2],)))

    @model_validator(mode="after")
    def _gateway_knows_the_providers(self) -> Self:
        seen: list[str] = []
        for each in self.credentials:
            provider = providers.BY_KEY_VARIABLE.get(each.name)
            if provider is None:
                raise ValueError(f"credentials: the model gateway does not know {each.name}, only {_KEYS}")
            if provider.name in seen:
                raise ValueError(f"credentials: must have only one key of {provider.name}")
            seen.append(provider.name)
        if self.base_url is not None and re.fullmatch(providers.BASE_URL, self.base_url) is None:
            raise ValueError("baseURL: must be https://HOST[:PORT][/PATH] without user, query and fragment")
        return self


class JudgeSpec(RoleSpec):
    """The model that the task's verifiers call to grade a step."""

    @property
    def sources(self) -> Mapping[str, str]:
        """Return the variables that the verifier's phase gets: for each, the variable of its provider in ``credentials``."""
        return {name: each.name for each in self.credentials for name in providers.judge_variables(each.name)}


class UserSpec(RoleSpec):
    """The simulated user: an agent of Harbor that plays the user and talks to the trial's agent, as Harbor's user_agent."""

    model_config = cel(("has(self.name) != has(self.importPath)", "must have exactly one of name and importPath"))

    name: Annotated[str, AfterValidator(known_agent), Field(max_length=63)] | None = None
    """Name of the agent of Harbor that plays the user."""
    import_path: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", max_length=512)] | None = None
    """Its class as package.module:Class, instead of a name. The agent host's image must contain it."""
    version: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Version of its program. If unset, it chooses it."""
    options: Annotated[dict[str, Any], Field(alias="kwargs", max_length=64)] = {}
    """Options of its class, as of spec.agent."""
    persona: Annotated[str, Field(min_length=1, max_length=65536)] | None = None
    """Who the user is, at the start of its prompt. Unset: Harbor's text."""
    prompt_template: Annotated[str, Field(min_length=1, max_length=65536)] | None = None
    """Template of the user's prompt, with {{ bridge_instructions }}, {{ instruction }} and {{ persona }}. Unset: Harbor's."""

    @model_validator(mode="after")
    def _one_agent(self) -> Self:
        if (self.name is None) == (self.import_path is None):
            raise ValueError("must have exactly one of name and importPath")
        if self.name in BUILT_IN or self.name in harbor_agents.DIRECT:
            raise ValueError(f"name: {self.name} cannot play a user, as it does not call the model gateway")
        if self.name is not None and (found := option_problems(self.name, self.options)):
            raise ValueError("; ".join(found))
        used = set(_VARIABLE.findall(self.prompt_template)) if self.prompt_template is not None else _OF_PROMPTS
        if missing := [name for name in ("bridge_instructions", "instruction") if name not in used]:
            raise ValueError(f"promptTemplate: must have {{{{ {missing[0]} }}}}")
        if self.persona is not None and "persona" not in used:
            raise ValueError("promptTemplate: must have {{ persona }}, or persona would have no effect")
        return self


class ModelsSpec(Model):
    """Models of the trial by role."""

    judge: JudgeSpec | None = None
    """The model with which the task's verifiers grade, for test.sh scripts that call one; docs/how-to/judges.md."""

    user: UserSpec | None = None
    """The user with whom the agent talks, played by a model; docs/how-to/simulated-users.md."""

    @property
    def variables(self) -> Collection[str]:
        """Return the names of the variables that the verifier's phase gets."""
        return self.judge.sources.keys() if self.judge is not None else ()

    def refuse_agent(self, agent: AgentSpec) -> None:
        """Raise ValueError if the simulated user cannot talk to the agent."""
        if self.user is None:
            return
        if agent.name is not None and agent.name not in harbor_agents.BRIDGED:
            known = ", ".join(sorted(harbor_agents.BRIDGED))
            raise ValueError(f"models.user: a simulated user cannot talk to the agent {agent.name}, only to {known}")
        if not agent.uses_gateway:
            raise ValueError(
                "models.user: agent.access must be Gateway, with agent.credentials, so that each role's requests are counted"
            )
        if agent.name is not None and agent.name == self.user.name and self.user.version not in (None, agent.version):
            raise ValueError("models.user.version: must be that of spec.agent or unset, as both use one installation")

    def refuse_variables(self, names: Sequence[str]) -> None:
        """Raise ValueError if one of the verifier's own variables would replace one of the gateway's."""
        if found := sorted({*names} & {*self.variables}):
            raise ValueError(f"verifier.env: {found[0]} must not be set with models.judge, which sets it to the model gateway's")
