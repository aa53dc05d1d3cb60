"""Print as JSON which option values Harbor's own classes accept, and which agents need a model. Runs in a Python with Harbor."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "true"  # prevents litellm from downloading its price list

from harbor.agents.base import BaseAgent
from harbor.agents.factory import AgentFactory
from harbor.environments.base import ExecResult
from harbor.models.agent.context import AgentContext
from harbor.models.agent.name import AgentName
from pydantic import ValidationError

VALUES: list[Any] = [None, True, False, 0, 1, 5, -1, 1.0, 2.5, "x", "5", "5.0", "2.5", "true", "low", "", [], ["a"], {}, {"a": 1}]
CREDENTIALS = {
    **dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "LLM_API_KEY"), "k"),
    **dict.fromkeys(("XAI_API_KEY", "META_API_KEY", "JUNIE_API_KEY"), "k"),
    **dict.fromkeys(("MODEL_NAME", "LLM_MODEL"), "openai/m"),
}


class Environment:
    """An environment in which every command succeeds and prints nothing."""

    def __getattr__(self, name: str) -> Any:
        async def succeed(*_: Any, **__: Any) -> ExecResult:
            return ExecResult(stdout="", stderr="", return_code=0)

        return succeed


def spellings(agent: type[BaseAgent]) -> list[tuple[str, str]]:
    """Return the names of the options of the class: each as that of its field, and as it is written, which may be an alias."""
    fields = agent.options_model.model_fields if agent.options_model else {}
    choices = {name: getattr(field.validation_alias, "choices", [name]) for name, field in fields.items()}
    return [(name, alias) for name, aliases in choices.items() for alias in aliases]


def accepted(agent: type[BaseAgent], name: str, alias: str) -> list[bool] | None:
    """Return for each of VALUES whether Harbor accepts it for an option of the class; None if the class rejects the option."""
    if not getattr(agent.capabilities, name, True):  # base_url and reasoning_effort each depend on a capability
        return None
    return [_accepts(agent.options_model, name, alias, value) for value in VALUES]


def _accepts(model: Any, name: str, alias: str, value: object) -> bool:
    try:
        model.model_validate({alias: value})
    except ValidationError as error:
        return not any(each["loc"][:1] in {(name,), (alias,)} for each in error.errors())
    # A validator raises other errors if it cannot open the value as a file (rejected) or import a package (accepted).
    except Exception as error:
        return isinstance(error, ImportError)
    return True


def fails_without_model(name: str) -> bool:
    """Return whether the agent, in its constructor or in run, raises a ValueError about the missing model."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            agent = AgentFactory.create_agent_from_name(
                AgentName(name), logs_dir=Path(directory), model_name=None, extra_env=CREDENTIALS
            )
            asyncio.run(asyncio.wait_for(agent.run("do it", Environment(), AgentContext()), 30))
        except Exception as error:
            return type(error) is ValueError and "model" in str(error).lower()
    return False


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    found = {}
    for each in AgentFactory.registered_names():
        cls = AgentFactory.get_agent_class(AgentName(each))
        found[each] = {
            "options": {alias: accepted(cls, name, alias) for name, alias in spellings(cls)},
            "rejectsUnknown": bool(cls.options_model) and cls.options_model.model_config.get("extra") == "forbid",
            "needsModel": fails_without_model(each),
        }
    print(json.dumps({"values": VALUES, "agents": found}), flush=True)
    os._exit(0)  # some agents leave threads that do not end
