"""The tables of a sweep's branches in the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from multistep.api.common.plural import plural
from multistep.cli.terminal import clean, table
from multistep.report.branches import BranchedStep, Branches, Group
from multistep.report.page import branch_passes, interval, number, probability, signed


def branch_tables(branches: Branches) -> list[Text | Table]:
    """Return the table of the steps, then a line for each agent with several tasks. Return [] if the sweep has no branches."""
    if not branches.steps:
        return []
    ks = branch_passes(branches)
    passes = [f"PASS@{k}" for k in ks]
    heads = ("TASK", "AGENT", "STEP", "STATE", "PASSED", *passes, "EXCLUDED", "OWN - REFERENCE", "95 % INTERVAL")
    found = table(*heads, numbers=(*passes, "OWN - REFERENCE"))
    for each in branches.steps:
        for state, group in (("image", each.start), ("own", each.own), ("reference", each.reference)):
            if group is not None:
                found.add_row(*_names(each), state, *_counts(group, ks), *_difference(each, state))
            elif state == "own" and each.has_no_own_state:
                nothing = Text(f"no state: {each.reached} of {each.ordinary} trials reached the step", style="red")
                found.add_row(*_names(each), state, nothing, *["-" for _ in ks], "-", "-", "-")
    lines = []
    for one in branches.agents:
        estimate = one.difference.estimate
        text = f"{signed(estimate.value)}, 95 % interval {interval(estimate)}, p {probability(one.difference.p)}"
        over = f"over {plural(estimate.tasks, 'task')}, paired by task"
        lines.append(Text(f"{clean(one.agent)}: own minus reference {over}: {text}"))
    return [Text(), found, *lines]


def _names(step: BranchedStep) -> tuple[Text, Text, Text]:
    return Text(clean(step.task)), Text(clean(step.agent)), Text(clean(step.step))


def _counts(group: Group, ks: list[int]) -> list[str]:
    active = f", {group.active} not finished" if group.active else ""
    chances = [number(group.passes[k]) if k in group.passes else "-" for k in ks]
    return [f"{group.passed} of {group.counted}{active}", *chances, str(group.excluded or "-")]


def _difference(step: BranchedStep, state: str) -> tuple[str, str]:
    if state != "own" or step.difference is None:
        return "-", "-"
    return signed(step.difference.value), interval(step.difference)
