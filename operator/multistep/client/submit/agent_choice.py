"""Builds spec.agent from the options --agent and --model and the other options for agents of Harbor."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from multistep.api.trial import harbor_agents
from multistep.api.trial.values import BUILT_IN, agent_label
from multistep.client.options import ModelOptions
from multistep.client.submit.manifests import Manifest, optional, variable_from_secret
from multistep.errors import UsageError
from multistep.providers import PROVIDERS

KEY_VARIABLES: Final[Mapping[str, str]] = {
    **{each.name: each.key_variables[0] for each in PROVIDERS},
    "google": "GOOGLE_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "deepseek": "DEEPSEEK_API_KEY",
    "mistral": "MISTRAL_API_KEY",
    "xai": "XAI_API_KEY",
    "groq": "GROQ_API_KEY",
}
"""The environment variable in which agents expect a provider's key, by provider (first part of a model's name)."""

_HOSTED = re.compile(r"(?P<agent>[\w.-]+(?::\w+)?)@(?P<model>\S+)")


def agent_entry(agent: str, options: ModelOptions, *, command: Sequence[str] = (), env: Sequence[Manifest] = ()) -> Manifest:
    """Return spec.agent for an agent's name or import path. env: entries of spec.agent.env. Raises UsageError if options do not fit
    the agent."""
    if (agent == "command") != bool(command):
        raise UsageError("the command agent requires a command, other agents take none: --agent command -- PROGRAM ARGUMENT...")
    if agent in BUILT_IN:
        if options.given:
            raise UsageError(f"--agent {agent} uses no model: --model and its options are for agents such as claude-code")
        return {"name": agent, **optional(command=list(command) or None, env=list(env) or None)}
    return {**_identity(agent, options.model), **_options(agent, options), **optional(env=list(env) or None)}


def hosted_choice(text: str, options: ModelOptions) -> Manifest | None:
    """Return spec.agent for a text ``AGENT@MODEL``; None if the text has another form. Raises UsageError if options do not fit the
    agent."""
    found = _HOSTED.fullmatch(text)
    return agent_entry(found["agent"], replace(options, model=found["model"])) if found else None


def check_hosted(options: ModelOptions, entries: Sequence[Manifest]) -> None:
    """Raise UsageError for options that apply to none of the agents. entries: a list of spec.agent."""
    if options.given and all(each.get("name") in BUILT_IN for each in entries):
        raise UsageError("no agent uses a model: --max-cost and the other options of a model are for agents such as claude-code")


def check_images(options: ModelOptions, entries: Sequence[Manifest], names: Sequence[str] = ()) -> None:
    """Raise UsageError if an --agent-image is invalid, or names no agent of ``entries``, a list of spec.agent. names: the names
    that a sweep gives the agents."""
    agents = {*names, *(each.get("name") or each.get("importPath", "") for each in entries)}
    for text in options.images:
        name, _, image = text.rpartition("=")
        if not image or (name and name not in agents):
            raise UsageError(
                f"--agent-image {text}: must be IMAGE or AGENT=IMAGE, where AGENT is one of {', '.join(sorted(agents))}"
            )


def with_images_of(options: ModelOptions, name: str) -> ModelOptions:
    """Return the options for the agent to which a sweep gives this name: with the --agent-image ``NAME=IMAGE`` if there is one, and
    else all of them."""
    own = [image for each, _, image in (text.rpartition("=") for text in options.images) if each == name]
    return replace(options, images=tuple(own)) if own else options


def check_keys(options: ModelOptions, entries: Sequence[Manifest]) -> None:
    """Raise UsageError if it is unclear to which provider a key of --key-from-secret belongs. entries: a list of spec.agent."""
    unnamed = [each for each in options.keys if "=" not in each]
    variables = {KEY_VARIABLES[each["model"].partition("/")[0]] for each in entries if "model" in each} if unnamed else set()
    if len(unnamed) > 1 or len(variables) > 1:
        named = " and ".join(f"{each}=SECRET:KEY" for each in sorted(variables))
        raise UsageError(f"--key-from-secret {unnamed[-1]}: which provider's key is it? Name its variable: {named}")


def label(entry: Manifest) -> str:
    """Return the agent's name, or the name of its class, for use in the names of trials and sweeps."""
    return agent_label(entry.get("name"), entry.get("importPath"))


def _identity(agent: str, model: str | None) -> Manifest:
    if ":" in agent:
        return {"importPath": agent}
    name, separator, suffix = agent.partition("@")
    if separator and name in harbor_agents.NAMES:
        right = f"--agent {name} --model {suffix or 'PROVIDER/NAME'}"
        raise UsageError(f"--agent {agent}: AGENT@MODEL is for sweeps; for one trial give {right}")
    if agent not in harbor_agents.NAMES:
        hint = harbor_agents.suggestion(agent, (*BUILT_IN, *harbor_agents.NAMES))
        raise UsageError(
            f"--agent {agent}: no such agent{hint}; must be oracle, nop, command, an agent of Harbor such as claude-code, or the "
            "import path of a class (package.module:Class)"
        )
    if model is None:
        raise UsageError(f"--agent {agent} needs a model: --model PROVIDER/NAME, such as anthropic/claude-sonnet-4-5")
    return {"name": agent}


def _options(agent: str, options: ModelOptions) -> Manifest:
    return optional(
        model=options.model,
        version=options.version,
        kwargs=dict(_kwarg(each) for each in options.kwargs) or None,
        credentials=[credential(each, options.model) for each in options.keys] or None,
        access=options.access,
        baseURL=options.base_url,
        limits=_limits(options) or None,
        preinstalled=options.preinstalled or None,
        image=_image(options.images, agent),
    )


def _image(images: Sequence[str], agent: str) -> str | None:
    """Return the --agent-image of this agent: from ``AGENT=IMAGE`` if a value names the agent, else from a value ``IMAGE``."""
    by_agent = {name: image for name, _, image in (each.rpartition("=") for each in images)}
    return by_agent.get(agent, by_agent.get(""))


def _limits(options: ModelOptions) -> Manifest:
    return optional(inputTokens=options.max_input_tokens, outputTokens=options.max_output_tokens, costUSD=options.max_cost)


def _kwarg(text: str) -> tuple[str, Any]:
    """Parse ``NAME=VALUE``. VALUE is JSON, or a string if it is not valid JSON, as in Harbor 0.26's --agent-kwarg."""
    name, separator, value = text.partition("=")
    if not separator or not name.isidentifier():
        raise UsageError(f"--agent-kwarg {text}: must be NAME=VALUE, such as max_turns=50")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def credential(text: str, model: str | None, option: str = "--key-from-secret") -> Manifest:
    """Parse ``[NAME=]SECRET:KEY``, a value of ``option``; the default of NAME depends on the model's provider. Raises UsageError
    if the text has another form, or if the provider's variable is not known."""
    name, separator, source = text.rpartition("=")
    secret, _, key = source.partition(":")
    if not secret or not key or (separator and not name):
        raise UsageError(f"{option} {text}: must be SECRET:KEY or NAME=SECRET:KEY")
    provider = (model or "").partition("/")[0]
    if not name and provider not in KEY_VARIABLES:
        raise UsageError(
            f"{option} {text}: the variable for the key of {provider or 'no provider'!r} is not known; give NAME={text}"
        )
    return variable_from_secret(name or KEY_VARIABLES[provider], secret, key)


MAX_BYTES: Final = 32 * 1024
"""Maximum size of a script: each trial has a copy in its spec. Linux allows 128 KiB for one argument."""
_STARTER: Final = """\
file=$(mktemp "${TMPDIR:-/tmp}/agent.XXXXXX") && printf %s "$1" >"$file" && chmod 700 "$file" || exit 126
shift
"$file" "$@"
status=$?
rm -f "$file"
exit $status
"""
"""Writes the script, its first argument, to a file and runs it, so that the script's shebang chooses the interpreter."""


def script_command(path: Path, arguments: Sequence[str] = ()) -> list[str]:
    """Return the command that runs a script with these arguments. Raises UsageError if the file is not a usable script."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--agent-file {path}: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"--agent-file {path} has more than {MAX_BYTES // 1024} KiB, the limit, as each trial has a copy in its spec: put the "
            "program into the task's image, or let a small script fetch it"
        )
    if not data.strip():
        raise UsageError(f"--agent-file {path} is empty: it must be a script, such as #!/bin/bash and its commands")
    if b"\r\n" in data:
        raise UsageError(
            f"--agent-file {path} has CRLF line endings, which no shell understands: convert it with sed -i 's/\\r$//'"
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"--agent-file {path} is not a script: it is not UTF-8 text: {error}") from error
    if "\0" in text:
        raise UsageError(f"--agent-file {path} is not a script: it has a NUL byte")
    return ["sh", "-c", _STARTER, path.name, text, *arguments]
