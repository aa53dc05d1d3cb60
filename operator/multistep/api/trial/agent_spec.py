"""The model of spec.agent, and the options of Harbor's agents.

The agent is one of the operator's own (oracle, nop, command) or one of Harbor's, which runs in the agent host.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from multistep import providers
from multistep.api.common.base_model import EnvVars, Model, Multiplier, Seconds, cel
from multistep.api.common.problems import shown
from multistep.api.trial import harbor_agents
from multistep.api.trial.harbor_agents import suggestion
from multistep.api.trial.values import BUILT_IN, agent_label

TABLE: Final = Path(__file__).with_name("harbor_options.json")
"""File with the options of each agent, by the agent's name. An agent that is not in the file accepts any options."""

Alternative: TypeAlias = "str | Mapping[str, Any]"
"""An allowed type of a value: the type's name, or an object with an enum, or with a type and bounds, as in JSON Schema."""

_ON: Final = frozenset({"1", "on", "t", "true", "y", "yes"})
_TRUTHS: Final = _ON | {"0", "off", "f", "false", "n", "no"}


def option_problems(agent: str, kwargs: Mapping[str, Any]) -> list[str]:
    """Return the problems with an agent's options, in the order of the options. Return [] if the agent accepts any options."""
    known = _table().get(agent)
    if known is None:
        return []
    found = []
    for name, value in kwargs.items():
        if name not in known:
            found.append(f"kwargs: {agent} has no option {name!r}{suggestion(name, known)}")
        elif not any(_accepts(each, value) for each in known[name]):
            found.append(f"kwargs.{name}: must be {_described(known[name])}, not {shown(value)}")
    return found


@cache
def _table() -> Mapping[str, Mapping[str, Sequence[Alternative]]]:
    table: Mapping[str, Mapping[str, Sequence[Alternative]]] = json.loads(TABLE.read_text())
    return table


def _accepts(alternative: Alternative, value: object) -> bool:
    if isinstance(alternative, str):
        return _TYPES[alternative](value)
    if "enum" in alternative:
        return any(value == each for each in alternative["enum"])
    if not _TYPES[alternative["type"]](value):
        return False
    number = _number(value)
    within = (compares(number, alternative[name]) for name, (_, compares) in _BOUNDS.items() if name in alternative)
    return all(within)


def _number(value: object) -> float:
    """Return the number to which Harbor converts a value, NaN for a value that is not a number."""
    try:
        return float(value) if isinstance(value, (int, float, str)) else math.nan
    except (ValueError, OverflowError):
        return math.nan


def _is_truth(value: object) -> bool:
    return value.lower() in _TRUTHS if isinstance(value, str) else isinstance(value, (int, float)) and value in (0, 1)


def _is_on(value: object) -> bool:
    return value.lower() in _ON if isinstance(value, str) else value == 1


_TYPES: Final[Mapping[str, Callable[[object], bool]]] = {
    "any": lambda _: True,
    "null": lambda value: value is None,
    "boolean": _is_truth,
    "integer": lambda value: _number(value).is_integer(),
    "number": lambda value: not math.isnan(_number(value)),
    "string": lambda value: isinstance(value, (str, int, float)) and not isinstance(value, bool),
    "path": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}

_NOUNS: Final = {
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "string": "a text",
    "path": "a path",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_BOUNDS: Final[Mapping[str, tuple[str, Callable[[float, float], bool]]]] = {
    "minimum": (">=", operator.ge),
    "exclusiveMinimum": (">", operator.gt),
    "maximum": ("<=", operator.le),
    "exclusiveMaximum": ("<", operator.lt),
}


def _described(alternatives: Sequence[Alternative]) -> str:
    """Return the allowed values in words, e.g. "an integer > 0 or a path". Null is omitted, because Harbor treats it as unset."""
    return " or ".join(dict.fromkeys(_noun(each) for each in alternatives if each != "null"))


def _noun(alternative: Alternative) -> str:
    if isinstance(alternative, str):
        return _NOUNS[alternative]
    if "enum" in alternative:
        return f"one of {', '.join(alternative['enum'])}"
    bounds = [f"{sign} {alternative[name]}" for name, (sign, _) in _BOUNDS.items() if name in alternative]
    return f"{_NOUNS[alternative['type']]} {' and '.join(bounds)}"


PROGRAM_DIR: Final = "/multistep-agent"
"""Directory of the agent's program, both in an image that `multistep agent build` built and in the environment."""

_MODEL: Final = re.compile(r"[!-~]+")
_ONLY_HOSTED: Final = ("model", "version", "options", "credentials", "base_url", "limits", "preinstalled", "image")


def known_agent(name: str) -> str:
    """Return the name of an agent. Raises ValueError for an unknown name."""
    known = (*BUILT_IN, *harbor_agents.NAMES)
    if reason := harbor_agents.LEFT_OUT.get(name):
        raise ValueError(f"the agent {name} is not available: {reason}")
    if name not in known:
        hint = harbor_agents.suggestion(name, known)
        raise ValueError(f"must be oracle, nop, command or the name of an agent of Harbor 0.26{hint}")
    return name


class ModelLimits(Model):
    """Limits of the agent's model requests in the whole trial, over all steps and attempts."""

    input_tokens: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of input tokens, including cached ones."""
    output_tokens: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of output tokens."""
    cost_usd: Annotated[float | None, Field(alias="costUSD", gt=0, allow_inf_nan=False)] = None
    """Maximum cost in US dollars, according to the model gateway's price table, which must list the model."""


class AgentSpec(Model):
    """The agent that works on the steps."""

    model_config = cel(
        (
            "(has(self.name) && self.name == 'command') == has(self.command)",
            "command is required with name 'command' and not allowed with any other",
        ),
        ("has(self.name) != has(self.importPath)", "must have exactly one of name and importPath"),
    )

    name: Annotated[str, AfterValidator(known_agent), Field(max_length=63)] | None = None
    """Name of the agent. oracle runs the task's solution, nop does nothing, and command runs the given command. Any other name is
    an agent of Harbor."""
    import_path: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", max_length=512)] | None = None
    """Class of an agent as package.module:Class, instead of a name. The agent host's image must contain it."""
    model: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Model as PROVIDER/NAME, such as anthropic/claude-sonnet-4-5, only for agents of Harbor, most of which need one."""
    version: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Version of the agent's program. If unset, the agent chooses it."""
    options: Annotated[dict[str, Any], Field(alias="kwargs", max_length=64)] = {}
    """Options of the agent, which are keyword arguments of its class, as in Harbor's kwargs. They are checked if the agent is
    chosen by name, and not by importPath."""
    credentials: EnvVars = []
    """Variables with the provider's keys, such as ANTHROPIC_API_KEY."""
    access: Literal["Gateway", "Direct"] = "Gateway"
    """With Gateway, the agent calls the model gateway, which alone has the provider's key and counts tokens. With Direct, the agent
    calls the provider, its processes have the key, and its own count is used."""
    base_url: Annotated[str | None, Field(alias="baseURL", pattern=r"^https?://", max_length=2048)] = None
    """URL of the model's API, if it is not the provider's own."""
    provider_tools: Literal["Allow", "Refuse"] = "Allow"
    """With Refuse, the model gateway refuses requests that use tools of the provider, such as web search, or files that the
    provider fetches by URL, because the network of a step does not limit the provider. This needs access Gateway. With Allow, it
    forwards them."""
    capture: Literal["None", "Tokens"] = "None"
    """With Tokens, the model gateway records the token ids and log-probabilities of the agent's requests, for training. They must
    be chat completions or messages. This needs access Gateway, and baseURL must be the URL of a server of vLLM or SGLang."""
    limits: ModelLimits | None = None
    """Budget of the trial's model requests. The model gateway refuses a request that might exceed it. This needs access Gateway."""
    preinstalled: bool = False
    """Whether the environment's image contains the agent's program. Then nothing is installed, and a missing program is an
    error."""
    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Image with the agent's program, built by `multistep agent build`. The program is mounted read-only into the environment, and
    nothing is installed."""
    command: Annotated[list[str], Field(min_length=1, max_length=1024)] | None = None
    """Program and arguments of the command agent. $MULTISTEP_INSTRUCTION_FILE is the path of the instruction."""
    env: EnvVars = []
    """Variables of only the agent."""
    timeout_seconds: Seconds | None = None
    """Agent timeout in seconds, which overrides the step's and the task's. 0 or unset means no override."""
    max_timeout_seconds: Seconds | None = None
    """Upper bound of the timeout in seconds. 0 or unset means no bound."""
    timeout_multiplier: Multiplier | None = None
    """Multiplier of the timeout, which replaces spec.timeoutMultiplier."""
    user: str | int | None = None
    """User name or uid of the agent, which overrides the task's."""

    @property
    def hosted(self) -> bool:
        """Return whether the agent host runs the agent."""
        return self.name not in BUILT_IN

    @property
    def label(self) -> str:
        """Return the agent's name for labels, metrics and reports, which is ``name`` or the class name in the import path."""
        return agent_label(self.name, self.import_path)

    @property
    def uses_gateway(self) -> bool:
        """Return whether the agent calls the model gateway."""
        return self.access == "Gateway" and bool(self.credentials)

    @property
    def captures(self) -> bool:
        """Return whether the model gateway records the agent's tokens."""
        return self.capture == "Tokens"

    @property
    def url_variables(self) -> Sequence[str]:
        """Return the names of the variables for the URL of the model's API.

        They are those of the providers whose keys ``credentials`` has or, if it has none, those of the model's provider.
        """
        return [name for each in self._providers_of_keys for name in each.url_variables] or providers.url_variables(self.model)

    @property
    def direct_hosts(self) -> Sequence[str]:
        """Return the hosts of the model's API, if they are known and the agent calls them directly."""
        if not self.hosted or self.uses_gateway:
            return ()
        if self.base_url is not None:
            return [host] if (host := urlsplit(self.base_url).hostname) else ()
        of_model = providers.provider_of(self.model)
        return [each.host for each in self._providers_of_keys or ([of_model] if of_model else [])]

    @property
    def _providers_of_keys(self) -> Sequence[providers.Provider]:
        return [providers.BY_KEY_VARIABLE[each.name] for each in self.credentials if each.name in providers.BY_KEY_VARIABLE]

    @property
    def installs(self) -> bool:
        """Return whether the setup installs the agent's program in the environment."""
        skipped = self.name is not None and _is_on(self.options.get("skip_install"))
        return not self.preinstalled and not skipped and self.image is None

    @property
    def may_resume(self) -> bool:
        """Return whether the agent may be able to resume a trajectory. This is True for a custom class, which the agent host
        checks."""
        return self.import_path is not None or self.name in harbor_agents.RESUMING

    @model_validator(mode="after")
    def _one_agent(self) -> Self:
        if (self.name is None) == (self.import_path is None):
            raise ValueError("must have exactly one of name and importPath")
        if (self.name == "command") != (self.command is not None):
            raise ValueError("command is required with name 'command' and not allowed with any other")
        return self

    @model_validator(mode="after")
    def _for_hosted_agents(self) -> Self:
        for field in () if self.hosted else _ONLY_HOSTED:
            if getattr(self, field):
                alias = type(self).model_fields[field].alias or field
                raise ValueError(f"{alias} is not allowed: the {self.name} agent uses no model")
        return self

    @model_validator(mode="after")
    def _gateway_keeps_limits(self) -> Self:
        if self.limits is not None and self.hosted and not self.uses_gateway:
            raise ValueError("limits need the model gateway: access must be Gateway, and credentials must hold the provider's key")
        return self

    @model_validator(mode="after")
    def _gateway_refuses_tools(self) -> Self:
        if self.provider_tools == "Refuse" and not self.uses_gateway:
            raise ValueError("providerTools Refuse needs the model gateway: access must be Gateway, with credentials")
        return self

    @model_validator(mode="after")
    def _server_gives_tokens(self) -> Self:
        if self.captures and not (self.uses_gateway and self.base_url):
            raise ValueError(
                "capture Tokens needs the model gateway, and a server that gives token ids: access must be Gateway, with "
                "credentials, and baseURL must be the URL of a server of vLLM or SGLang"
            )
        return self

    @model_validator(mode="after")
    def _agent_takes_its_options(self) -> Self:
        if self.name is None:
            return self
        if self.name in harbor_agents.NEED_MODEL and self.model is None:
            raise ValueError(f"model is required: {self.name} cannot run without one, such as anthropic/claude-sonnet-4-5")
        if found := option_problems(self.name, self.options):
            raise ValueError("; ".join(found))
        return self

    @model_validator(mode="after")
    def _gateway_has_a_key(self) -> Self:
        uses_model = self.name in harbor_agents.NEED_MODEL or (self.name is not None and self.model is not None)
        if uses_model and self.access == "Gateway" and not self.credentials:
            raise ValueError(
                f"credentials must hold the provider's key (--key-from-secret), without which {self.name} cannot use its model; "
                "access must be Direct (--access Direct) if it needs no key or gets it in another way"
            )
        return self

    @model_validator(mode="after")
    def _env_keeps_the_gateways_variables(self) -> Self:
        if not self.uses_gateway:
            return self
        given = {f"env: {each.name}" for each in self.env}
        if self.name is not None:  # a custom class may use the same names for other purposes
            given |= {f"kwargs.{name}" for name, value in self.options.items() if value}
        fields = {"kwargs.base_url": "baseURL", "kwargs.api_base": "baseURL", "kwargs.api_key": "credentials"}
        for each in self._providers_of_keys:
            fields |= {f"env: {name}": "baseURL" for name in each.url_variables}
            fields |= {f"env: {name}": "credentials" for name in each.key_variables}
        if found := sorted(given & fields.keys()):
            what, right = found[0], fields[found[0]]
            raise ValueError(f"{what} must not be set with access Gateway, as it replaces the model gateway's; use {right}")
        return self

    @model_validator(mode="after")
    def _base_url_is_of_a_provider(self) -> Self:
        if self.base_url is None:
            return self
        if not self.url_variables:
            raise ValueError(f"baseURL needs the provider of its API: model must be PROVIDER/NAME, not {shown(self.model)}")
        try:
            urlsplit(self.base_url)
        except ValueError as error:  # e.g. an IPv6 address without its bracket
            raise ValueError(f"baseURL: must be a URL, not {shown(self.base_url)}: {error}") from error
        return self

    @model_validator(mode="after")
    def _gateway_knows_the_provider(self) -> Self:
        if not self.uses_gateway:
            return self
        if self.name in harbor_agents.DIRECT:
            raise ValueError(f"access must be Direct: {self.name} takes no base URL, so it cannot use the model gateway")
        for each in self.credentials:
            if each.name not in providers.BY_KEY_VARIABLE:
                known = ", ".join(providers.BY_KEY_VARIABLE)
                raise ValueError(
                    f"credentials: the model gateway does not know {each.name}, only {known}; for an API in OpenAI's form set "
                    "OPENAI_API_KEY, model openai/NAME and baseURL; access Direct takes any"
                )
        if self.model is not None and _MODEL.fullmatch(self.model) is None:
            raise ValueError(f"model: must have visible ASCII characters only, not {shown(self.model)}")
        if self.base_url is not None and re.fullmatch(providers.BASE_URL, self.base_url) is None:
            raise ValueError(
                "baseURL: must be https://HOST[:PORT][/PATH] without user, query and fragment, as the model gateway appends the "
                f"request's path, not {shown(self.base_url)}"
            )
        return self
