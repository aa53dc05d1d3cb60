"""The plan of a trial's judge: the model that its verifiers call (spec.models.judge)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from multistep.api.task.task_toml import NetworkMode
from multistep.api.trial.models_spec import JudgeSpec
from multistep.engine.plan.network_types import Egress
from multistep.engine.plan.resolve_templates import referenced_variable
from multistep.errors import InvalidSpec

MAX_RUNS: Final = 6
"""How many times a step's verification may run, because requests of its judge failed."""


def judge_sources(judge: JudgeSpec | None, env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables of the verifier's phase that get the gateway's URL or a token: for each, the variable of the judge that
    has the same value. env: the verifier's variables, unresolved. Their own values are not used, so that no key gets into the
    container: those that the judge sets, and those that a template takes from one of these."""
    if judge is None:
        return {}
    taken = {name: source for name, value in env.items() if (source := referenced_variable(value)) in judge.sources}
    return {**{name: source for name, source in taken.items() if source}, **{name: name for name in judge.sources}}


def refuse_unreachable_judge(mode: NetworkMode, egress: Egress) -> None:
    """Raise InvalidSpec for a judge that cannot be reached from a verifier's phase with this network_mode."""
    if mode != "public" and egress != "Sidecar":
        raise InvalidSpec(
            f"spec.models.judge: its model cannot be reached, as the network_mode of the verifier is {mode!r}; "
            "the chart's trials.egress = Sidecar keeps the model gateway reachable"
        )


def access_names(step: str, *, apart: bool) -> Iterator[str]:
    """Yield the names under which the model gateway counts the judge's requests in each run of a step's verification.

    apart: whether the verification is in a pod of its own. No other step has these names, as a step's name has no slash.
    """
    return (access_name(step, apart=apart, run=run) for run in range(1, MAX_RUNS + 1))


def access_name(step: str, *, apart: bool, run: int) -> str:
    """Return the name of the access in one run of a step's verification, counted from 1."""
    base = f"{step}/verifier" if apart else step
    return base if run == 1 else f"{base}/{run}"
