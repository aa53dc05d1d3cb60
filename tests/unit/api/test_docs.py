"""Test the references in docs/ and skills/create-task/SKILL.md: tables match the models, and all names in the text exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from pydantic import BaseModel

from hack.generate.crds import SWEEP, TRIAL, openapi_schema
from hack.generate.reference import MODULES, PAGES, with_tables
from multistep.api.sweep.sweep import TrialSweep, parse_sweep
from multistep.api.task.suspicious_values import unknown_keys
from multistep.api.task.task_toml import TaskConfig, parse_task
from multistep.api.trial.status_journal import in_journal, model_in
from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.cli.main import cli
from multistep.telemetry.metrics import Metrics
from tests.support.prose import code, exists, fences, field_names, headings, links
from tests.unit.api.test_crd import pruned

ROOT = Path(__file__).parents[3]
SKILL = "skills/create-task/SKILL.md"
TEXTS = {page: (ROOT / page).read_text() for page in (*PAGES, "docs/reference/semantics.md", SKILL)}
MODELS = [each for module in MODULES for each in vars(module).values() if isinstance(each, type) and issubclass(each, BaseModel)]
KUBERNETES = {"shareProcessNamespace", "podPidsLimit", "livenessProbe", "preStop"}
NAMES = {name for model in MODELS for name in field_names(model)} | KUBERNETES
NAMES |= {f"{each.name}_total" for each in Metrics().registry.collect()}
OF_TASKS, OF_RESOURCES = dict.fromkeys(TaskConfig.model_fields, TaskConfig), ("spec", "status", "metadata")
ROOTS = {
    page: OF_TASKS | dict.fromkeys(OF_RESOURCES, TrialSweep if page.endswith("/sweeps.md") else MultiStepTrial) for page in TEXTS
}


@pytest.fixture(params=TEXTS)
def text(request: pytest.FixtureRequest) -> str:
    return TEXTS[request.param]


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_are_current(page: str) -> None:
    assert with_tables(TEXTS[page]) == TEXTS[page], "run: make generate"


def reachable(model: type[BaseModel], *, whole: bool = False) -> Iterator[type[BaseModel]]:
    """Yield the models of a resource's fields. whole: also those that are only in status.journal."""
    yield model
    for name, field in model.model_fields.items():
        if (below := model_in(field.annotation)) is not None and (whole or not in_journal(model, name)):
            yield from reachable(below, whole=whole)


def test_every_field_has_a_table_and_a_meaning() -> None:
    tables = {found for page in PAGES for found in re.findall(r"<!-- table (\w+) -->", TEXTS[page])}
    assert {model.__name__ for model in MODELS if not model.__name__.startswith("_")} - tables <= {
        *("BaseModel", "Model", "RoleSpec", "MultiStepTrial", "TrialSweep", "Metadata", "TrialTemplateSpec"),
        *(model.__name__ for model in set(reachable(MultiStepTrial, whole=True)) - set(reachable(MultiStepTrial))),
    }
    assert not [
        f"{model.__name__}.{name}"
        for model in MODELS
        for name, field in model.model_fields.items()
        if model.__name__ in tables and not field.description
    ]


@pytest.mark.parametrize("page", TEXTS)
def test_every_dotted_field_exists(page: str) -> None:
    wrong = [each for each in dotted(TEXTS[page]) if not exists(ROOTS[page].get(each.split(".")[0]), each.split("."))]
    assert wrong == []


def test_every_name_that_resembles_a_field_is_one(text: str) -> None:
    assert [each for each in code(text) if re.fullmatch(r"[a-z]+(_[a-z]+)+|[a-z]+([A-Z][a-z]+)+", each) and each not in NAMES] == []


def test_links_lead_somewhere(text: str) -> None:
    page = next(path for path, each in TEXTS.items() if each is text)
    for link in links(text):
        file, _, anchor = link.partition("#")
        target = (ROOT / page).parent / file if file else ROOT / page
        assert target.is_file(), link
        assert not anchor or anchor in headings(target.read_text()), link


def test_every_toml_is_a_config_without_unknown_keys(text: str) -> None:
    for each in fences(text, "toml"):
        assert parse_task(each).steps
        assert unknown_keys(each) == []


def test_every_trial_and_every_sweep_is_one(text: str) -> None:
    kinds = {"MultiStepTrial": (parse_trial, TRIAL), "TrialSweep": (parse_sweep, SWEEP)}
    for each in fences(text, "yaml"):
        found = yaml.safe_load(each)
        parse, kind = kinds[found["kind"]]
        assert parse(found)
        assert pruned(found["spec"], openapi_schema(kind)["properties"]["spec"]) == found["spec"]


def test_every_command_line_is_possible(text: str) -> None:
    for words in command_lines(text):
        command = cli.get_command(click.Context(cli), words[1])
        if isinstance(command, click.Group) and not words[2].startswith("-"):
            command = command.get_command(click.Context(command), words[2])
        assert command, words
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        ours = words[: words.index("--")] if "--" in words else words
        assert {word.partition("=")[0] for word in ours if word.startswith("-")} <= known, words


def test_the_skill_can_be_found() -> None:
    _, front, body = TEXTS[SKILL].split("---\n", 2)
    output = yaml.safe_load(front)
    assert output["name"] == Path(SKILL).parent.name
    assert 40 < len(output["description"]) <= 1024
    assert {"init", "check", "run", "show"} <= {words[1] for words in command_lines(body)}


def dotted(text: str) -> Iterator[str]:
    """Yield the dotted field paths in the text's inline code, but no file names."""
    for each in code(text):
        if re.fullmatch(r"[a-z]\w*(\.[a-z]\w*)+", each) and not re.search(r"\.(sh|toml|json|md|txt|yaml|py)$", each):
            yield each


def command_lines(text: str) -> list[list[str]]:
    lines = [line.split("|")[0] for each in fences(text, "sh") for line in each.splitlines()]
    found = [shlex.split(line, comments=True) for line in (*lines, *code(text)) if line.startswith("multistep ")]
    return [words for words in found if len(words) > 1]
