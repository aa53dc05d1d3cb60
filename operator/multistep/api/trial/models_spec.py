"""The models of a trial by role, beside its agent's: what judges the steps."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from multistep import providers
from multistep.api.common.base_model import EnvVars, Model
from multistep.api.trial.agent_spec import ModelLimits

_KEYS: Final = ", ".join(providers.BY_KEY_VARIABLE)


class JudgeSpec(Model):
    """The model that the task's verifiers call to grade a step, through the model gateway."""

    model: Annotated[str, Field(pattern=r"^[!-~]+$", max_length=512)]
    """Model as PROVIDER/NAME, such as openai/gpt-5-mini: the one whose rejection or outage ends the trial."""
    credentials: Annotated[EnvVars, Field(min_length=1)]
    """Variables with the providers' keys, such as OPENAI_API_KEY; at most one of each provider."""
    base_url: Annotated[str | None, Field(alias="baseURL", pattern=r"^https?://", max_length=2048)] = None
    """URL of the model's API, if it is not the provider's own."""
    provider_tools: Literal["Allow", "Refuse"] = "Allow"
    """Refuse: the model gateway refuses requests that use tools of the provider, or files that it fetches by URL."""
    other_models: Literal["Allow", "Refuse"] = "Allow"
    """Refuse: the model gateway refuses requests for other models than ``model``, so that no other one grades."""
    limits: ModelLimits | None = None
    """Budget of the judge's requests in the whole trial, over all steps and attempts. The model gateway refuses a request that
    might exceed it."""

    @property
    def sources(self) -> Mapping[str, str]:
        """Return the variables that the verifier's phase gets: for each, the variable of its provider in ``credentials``."""
        return {name: each.name for each in self.credentials for name in providers.judge_variables(each.name)}

    @property
    def allowed_models(self) -> Sequence[str]:
        """Return the names of the only models that may be requested: the model's, with its provider and without; () for any."""
        return () if self.other_models == "Allow" else (self.model, *filter(None, (self.model.partition("/")[2],)))

    @property
    def label(self) -> str:
        """Return the role's name in metrics of the gateway."""
        return "judge"

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


class ModelsSpec(Model):
    """Models of the trial by role."""

    judge: JudgeSpec | None = None
    """The model with which the task's verifiers grade, for test.sh scripts that call one; docs/how-to/judges.md."""

    @property
    def variables(self) -> Collection[str]:
        """Return the names of the variables that the verifier's phase gets."""
        return self.judge.sources.keys() if self.judge is not None else ()

    def refuse_variables(self, names: Sequence[str]) -> None:
        """Raise ValueError if one of the verifier's own variables would replace one of the gateway's."""
        if found := sorted({*names} & {*self.variables}):
            raise ValueError(f"verifier.env: {found[0]} must not be set with models.judge, which sets it to the model gateway's")
