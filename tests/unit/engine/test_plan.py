from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from multistep.api.task.layout import StepLayout
from multistep.api.trial.runner_records import Identity
from multistep.engine.plan.plan import Hook, StepPlan, TrialEnv, isolation, users_of
from multistep.engine.plan.resolve_templates import Unresolved
from multistep.engine.plan.task_steps import SINGLE_STEP
from multistep.errors import InvalidSpec, InvalidTask
from tests.support.played import COMPLETE, IMAGE, plan
from tests.unit.engine.script_cases import task


def step(toml: str = "", spec: Mapping[str, Any] | None = None, **options: Any) -> StepPlan:
    return plan(toml or task(), spec, **options).steps[0]


# -- inheritance from task to step


@pytest.mark.parametrize(
    ("field", "head", "own", "nothing", "inherited", "overridden"),
    [
        ("agent_timeout", "[agent]\ntimeout_sec = 7", "[steps.agent]\ntimeout_sec = 3", None, 7.0, 3.0),
        ("agent_timeout", "[agent]\ntimeout_sec = 7", "[steps.agent]\ntimeout_sec = 0", None, 7.0, 0.0),
        ("agent_user", '[agent]\nuser = "alice"', "[steps.agent]\nuser = 0", "", "alice", "0"),
        ("agent_user", '[agent]\nuser = "alice"', '[steps.agent]\nuser = ""', "", "alice", "alice"),
        ("verifier.user", '[verifier]\nuser = "v"', '[steps.verifier]\nuser = "w"', "", "v", "w"),
        ("verifier.timeout", "[verifier]\ntimeout_sec = 7", "[steps.verifier]\ntimeout_sec = 3", 600.0, 600.0, 3.0),
        (
            "verifier.env",
            '[verifier.env]\nA = "task"\nB = "task"',
            '[steps.verifier.env]\nB = "step"',
            {},
            {"A": "task", "B": "task"},
            {"A": "task", "B": "step"},
        ),
        (
            "hooks",
            '[[verifier.collect]]\ncommand = "one"',
            '[[steps.verifier.collect]]\ncommand = "two"\nuser = 5\ntimeout_sec = 9',
            (),
            (Hook("one", "", 60.0),),
            (Hook("one", "", 60.0), Hook("two", "5", 9.0)),
        ),
        (
            "healthcheck",
            '[environment.healthcheck]\ncommand = "task"',
            "",
            None,
            None,
            None,
        ),
    ],
)
def test_a_step_inherits(field: str, head: str, own: str, nothing: object, inherited: object, overridden: object) -> None:
    for toml, wanted in ((task(), nothing), (task(head), inherited), (task(head, own), overridden)):
        value: Any = step(toml)
        for part in field.split("."):
            value = getattr(value, part)
        assert value == wanted


def test_a_step_can_have_the_images_user_against_the_tasks() -> None:
    assert step(task('agent.user = "alice"', '[steps.agent]\nuser = ""')).agent_user == ""


def test_the_task_keeps_its_own_healthcheck() -> None:
    toml = task('[environment.healthcheck]\ncommand = "task"', '[steps.healthcheck]\ncommand = "step"')
    made = plan(toml)
    assert made.healthcheck and made.healthcheck.command == "task"
    assert made.steps[0].healthcheck and made.steps[0].healthcheck.command == "step"


def test_artifacts_are_the_tasks_then_the_trials_then_the_steps() -> None:
    toml = f'artifacts = ["/task"]\n{IMAGE}[[steps]]\nname = "a"\nartifacts = ["/step"]'
    spec = {"artifacts": [{"source": "/trial", "destination": "t", "exclude": ["*.o"]}]}
    entries = [(each.source, each.destination, each.exclude) for each in step(toml, spec).artifacts]
    assert entries == [
        ("/logs/artifacts", None, []),
        ("/task", None, []),
        ("/trial", "t", ["*.o"]),
        ("/step", None, []),
    ]


# -- overrides in the trial's spec


@pytest.mark.parametrize(
    ("spec", "field", "wanted"),
    [
        ({"agent": {"name": "nop", "timeoutSeconds": 9}}, "agent_timeout", 9.0),
        ({"agent": {"name": "nop", "timeoutSeconds": 0}}, "agent_timeout", 100.0),
        ({"agent": {"name": "nop", "maxTimeoutSeconds": 50}}, "agent_timeout", 50.0),
        ({"agent": {"name": "nop", "timeoutMultiplier": 0.5}, "timeoutMultiplier": 3}, "agent_timeout", 50.0),
        ({"timeoutMultiplier": 3}, "agent_timeout", 300.0),
        ({"timeoutMultiplier": 3}, "verifier.timeout", 600.0),
        ({"verifier": {"timeoutSeconds": 9}}, "verifier.timeout", 9.0),
        ({"verifier": {"maxTimeoutSeconds": 50}}, "verifier.timeout", 50.0),
        ({"verifier": {"timeoutMultiplier": 2}, "timeoutMultiplier": 3}, "verifier.timeout", 400.0),
        ({"agent": {"name": "nop", "user": "bob"}}, "agent_user", "bob"),
        ({"agent": {"name": "nop", "user": 0}}, "agent_user", "0"),
        ({"extraInstructions": ["one", "two\n"]}, "instruction", "do it\n\none\n\ntwo\n"),
        ({"verifier": {"disable": True}}, "verifier", None),
    ],
)
def test_the_spec_overrides(spec: Mapping[str, Any], field: str, wanted: object) -> None:
    toml = task("[agent]\nuser = 7", '[steps.agent]\ntimeout_sec = 100\nuser = "alice"\n[steps.verifier]\ntimeout_sec = 200')
    value: Any = step(toml, spec)
    for part in field.split("."):
        value = getattr(value, part)
    assert value == wanted


@pytest.mark.parametrize(
    ("head", "spec", "wanted"),
    [
        ("", {}, 600.0),
        ("build_timeout_sec = 5", {}, 5.0),
        ("build_timeout_sec = 5", {"timeoutMultiplier": 3}, 15.0),
        ("build_timeout_sec = 5", {"timeoutMultiplier": 3, "environmentTimeoutMultiplier": 2}, 10.0),
        ("build_timeout_sec = nan", {}, float("inf")),
        ("build_timeout_sec = inf", {"environmentTimeoutMultiplier": 0}, float("inf")),
    ],
)
def test_the_limit_of_the_environments_start(head: str, spec: Mapping[str, Any], wanted: float) -> None:
    assert plan(task(environment=head), spec).start_timeout == wanted


@pytest.mark.parametrize(
    ("configured", "wanted"),
    [
        ({}, (5.0, 30.0, 0.0, 5.0, 3)),
        ({"interval_sec": 1, "timeout_sec": 2, "start_period_sec": 3, "start_interval_sec": 4, "retries": 5}, (1, 2, 3, 4, 5)),
        ({"interval_sec": "nan", "timeout_sec": "nan", "start_period_sec": "nan", "start_interval_sec": "-inf"}, (0, 0, 0, 0, 3)),
        ({"interval_sec": "inf", "timeout_sec": "inf", "start_period_sec": "inf"}, (1e9, 1e9, 1e9, 5.0, 3)),
        ({"retries": 10**30, "interval_sec": -3}, (0, 30.0, 0.0, 5.0, 2**31 - 1)),
        ({"retries": -(10**30)}, (5.0, 30.0, 0.0, 5.0, 0)),
    ],
)
def test_a_healthchecks_numbers_can_be_sent_to_the_runner(configured: Mapping[str, object], wanted: tuple[float, ...]) -> None:
    body = 'command = "x"\n' + "".join(f"{key} = {value}\n" for key, value in configured.items())
    made = plan(task(f"[environment.healthcheck]\n{body}", f"[steps.healthcheck]\n{body}"))
    for check in (made.healthcheck, made.steps[0].healthcheck):
        assert check is not None
        numbers = (check.interval_sec, check.timeout_sec, check.start_period_sec, check.start_interval_sec, check.retries)
        assert numbers == wanted


@pytest.mark.parametrize(("reported", "wanted"), [("5", 5.0), ("nan", None), ("inf", None), ("-inf", None), ("0", 0.0)])
def test_a_hooks_timeout_can_be_sent_to_the_runner(reported: str, wanted: float | None) -> None:
    assert step(task(f'[[verifier.collect]]\ncommand = "x"\ntimeout_sec = {reported}')).hooks == (Hook("x", "", wanted),)


# -- environment variables and their templates


def test_variables_of_the_verifier_task_then_step_then_trial() -> None:
    toml = task('[verifier.env]\nA = "t"\nB = "t"\nC = "t"', '[steps.verifier.env]\nB = "s"\nC = "s"')
    verifier = step(toml, env=TrialEnv(verifier={"C": "trial"})).verifier
    assert verifier and verifier.env == {"A": "t", "B": "s", "C": "trial"}


def test_variables_of_the_environment_task_then_trial() -> None:
    made = plan(task('[environment.env]\nA = "t"\nB = "t"'), env=TrialEnv(environment={"B": "trial"}))
    assert made.environment_env == {"A": "t", "B": "trial"}


def test_templates_are_resolved_from_the_trials_variables_in_every_table() -> None:
    toml = task('[environment.env]\nE = "${X}"\n[solution.env]\nS = "${X}"\n[verifier.env]\nV = "${X:-d}"')
    made = plan(toml, env=TrialEnv(variables={"X": "x"}, agent={"A": "${X}"}))
    assert (made.environment_env, made.solution_env, made.agent_env) == ({"E": "x"}, {"S": "x"}, {"A": "x"})
    verifier = made.steps[0].verifier
    assert verifier and verifier.env == {"V": "x"}


@pytest.mark.parametrize(
    ("toml", "env", "field"),
    [
        (task('[environment.env]\nE = "${X}"'), TrialEnv(), "environment.env"),
        (task(), TrialEnv(agent={"A": "${X}"}), "spec.agent.env"),
    ],
)
def test_an_unset_variable_of_environment_or_agent_is_a_load_error(toml: str, env: TrialEnv, field: str) -> None:
    with pytest.raises(InvalidTask, match="'X' is not set") as caught:
        plan(toml, env=env)
    assert (caught.value.kind, caught.value.field) == ("ValueError", field)


def test_an_unset_variable_of_verifier_or_solution_is_kept_for_the_step() -> None:
    made = plan(task('[solution.env]\nS = "${X}"\n[verifier.env]\nV = "${X}"'))
    assert isinstance(made.solution_env, Unresolved)
    verifier = made.steps[0].verifier
    assert verifier and isinstance(verifier.env, Unresolved)


# -- whole plans


def test_names_and_the_like() -> None:
    made = plan(
        f'multi_step_reward_strategy = "final"\n[task]\nname = "org/x"\n{IMAGE}workdir = "/w"\n'
        '[[steps]]\nname = "a"\n[[steps]]\nname = "b"',
        {"agent": {"name": "command", "command": ["go", "fast"]}, "onAgentError": "Continue"},
        env=TrialEnv(agent={"A": "1"}),
    )
    assert (made.task_name, made.image, made.workdir, made.strategy) == ("org/x", "img", "/w", "final")
    assert (made.agent_name, made.agent_command, made.agent_env) == ("command", ("go", "fast"), {"A": "1"})
    assert (made.abort_on_agent_error, made.single) == (False, False)
    assert [(each.name, each.index, each.directory) for each in made.steps] == [("a", 0, "a"), ("b", 1, "b")]


def test_a_task_without_a_name_is_called_as_its_directory() -> None:
    assert plan().task_name == "dir-name"


@pytest.mark.parametrize(
    ("files", "root", "wanted"),  # wanted: fields of the step and its verifier, in the order of the assertion
    [
        (COMPLETE, StepLayout(), ("a", True, False, True, False, False)),
        (StepLayout(instruction=""), COMPLETE, (None, True, True, False, False, False)),
        # a step's solution directory without a solve.sh does not fall back to the task's solve.sh
        (StepLayout(solution=True), COMPLETE, ("a", False, True, False, False, False)),
        (StepLayout(workdir=True, setup=True), StepLayout(), (None, False, False, False, True, True)),
        (StepLayout(tests=True), StepLayout(tests=True), (None, False, True, True, False, False)),
    ],
)
def test_where_a_steps_files_are(files: StepLayout, root: StepLayout, wanted: tuple[object, ...]) -> None:
    made = step(steps={"a": files}, root=root)
    assert made.verifier
    assert (
        made.solution_directory,
        made.solve_script,
        made.verifier.task_tests,
        made.verifier.step_tests,
        made.workdir,
        made.setup,
    ) == wanted


def test_a_step_without_an_instruction_has_none_whatever_the_trial_adds() -> None:
    assert step(spec={"extraInstructions": ["more"]}, steps={"a": StepLayout()}).instruction is None


def test_a_single_step_task_is_one_step_from_the_root() -> None:
    toml = (
        f'artifacts = ["/x"]\n{IMAGE}[agent]\nuser = "u"\ntimeout_sec = 5\n'
        '[verifier]\ntimeout_sec = 7\nuser = "v"\n[verifier.env]\nV = "1"\n[[verifier.collect]]\ncommand = "hook"\n'
    )
    root = StepLayout("do it", workdir=True, setup=True, tests=True, test_script=True, solution=True, solve_script=True)
    made = plan(toml, {"extraInstructions": ["more"]}, root=root)
    (only,) = made.steps
    assert (made.single, made.strategy) == (True, "final")
    assert (only.name, only.directory, only.workdir, only.setup) == (SINGLE_STEP, None, False, False)
    assert (only.instruction, only.agent_user, only.agent_timeout) == ("do it\n\nmore", "u", 5.0)
    assert (only.solution_directory, only.solve_script, only.min_reward) == (None, True, None)
    assert (only.hooks, [each.source for each in only.artifacts]) == ((Hook("hook", "", 60.0),), ["/logs/artifacts", "/x"])
    assert only.verifier
    assert (only.verifier.timeout, only.verifier.user, only.verifier.env) == (7.0, "v", {"V": "1"})
    assert (only.verifier.task_tests, only.verifier.step_tests) == (True, False)


# -- the image of the trial's container


@pytest.mark.parametrize(
    ("toml", "spec", "layout", "wanted"),
    [
        (task(), {}, {}, "img"),
        (task(), {"environment": {"image": "mine"}}, {}, "mine"),
        (task(), {}, {"dockerfile": True}, "img"),
        ('[[steps]]\nname = "a"', {"environment": {"image": "mine"}}, {"dockerfile": True}, "mine"),
    ],
)
def test_the_image(toml: str, spec: Mapping[str, Any], layout: Mapping[str, Any], wanted: str) -> None:
    assert plan(toml, spec, **layout).image == wanted


def test_a_dockerfile_alone_is_refused_with_the_command_that_builds_it() -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.environment\.image.*multistep build TASK"):
        plan('[[steps]]\nname = "a"', dockerfile=True)


def test_a_task_without_any_image_is_refused() -> None:
    with pytest.raises(InvalidTask, match="environment/Dockerfile") as caught:
        plan('[[steps]]\nname = "a"')
    assert caught.value.kind == "FileNotFoundError"


@pytest.mark.parametrize(
    ("layout", "wanted"),
    [
        ({}, False),
        ({"environment_files": True}, True),
        ({"environment_files": True, "dockerfile": True}, False),  # environment/ is the build context, so it is not uploaded
    ],
)
def test_environment_files_are_uploaded_only_beside_a_mere_image(layout: Mapping[str, Any], wanted: bool) -> None:
    assert plan(task(), **layout).environment_files is wanted


# -- isolation of the verifier from the agent


@pytest.mark.parametrize(
    ("agent", "verifier", "default", "wanted"),
    [
        ("", "", "0", "Shared"),
        ("alice", "", "0", "User"),
        ("alice", "bob", "0", "User"),
        ("alice", "alice", "0", "Shared"),
        ("alice:staff", "alice", "0", "Shared"),
        ("root", "bob", "0", "Shared"),
        ("root:staff", "bob", "0", "Shared"),
        ("0:1000", "bob", "0", "Shared"),
        ("00", "bob", "0", "Shared"),
        ("", "bob", "0:0", "Shared"),
        ("", "", "1000:1000", "Shared"),
        ("", "root", "1000:1000", "User"),
        ("1000", "1001", "0", "User"),
        ("1000", "1000:7", "0", "Shared"),
        ("alice", "", "1000:1000", "Shared"),  # alice may be the name of uid 1000
        ("1000", "alice", "0", "Shared"),
        ("alice", "0", "1000:1000", "User"),
    ],
)
def test_isolation_is_claimed_only_when_agent_and_verifier_are_surely_others(
    agent: str, verifier: str, default: str, wanted: str
) -> None:
    toml = task(f'[agent]\nuser = "{agent}"\n[verifier]\nuser = "{verifier}"')
    assert isolation(plan(toml), default) == wanted


@pytest.mark.parametrize(
    ("agent", "verifier", "hook", "wanted"),
    [
        ("toor", "", "toor", "Shared"),  # toor is another name of root
        ("alice", "bob", "alice", "User"),
        ("alice", "ally", "alice", "Shared"),  # alice and ally have the same uid
        ("admin", "bob", "admin", "Shared"),  # admin is in root's group
        ("1000", "bob", "1000", "Shared"),  # a uid without an entry in /etc/passwd gets root's group
        ("1000:1000", "bob", "1000:1000", "User"),
        ("alice:root", "bob", "alice", "Shared"),
        ("alice", "bob", "", "Shared"),  # the collect hook runs as root
        ("alice", "bob", "bob", "Shared"),  # the collect hook runs as the verifier's user
        ("alice", "bob", "carol", "User"),
    ],
)
def test_isolation_depends_on_the_ids_that_users_and_collect_hooks_have_in_the_image(
    agent: str, verifier: str, hook: str, wanted: str
) -> None:
    known = {
        "toor": Identity(0, frozenset({0})),
        "alice": Identity(1000, frozenset({1000})),
        "ally": Identity(1000, frozenset({1000})),
        "bob": Identity(1001, frozenset({1001})),
        "carol": Identity(1002, frozenset({1002, 7})),
        "admin": Identity(1003, frozenset({1003, 0})),
        "1000": Identity(1000, frozenset({0})),
        "1000:1000": Identity(1000, frozenset({1000})),
    }
    collect = f'[[verifier.collect]]\ncommand = "true"\nuser = "{hook}"'
    made = plan(task(f'[agent]\nuser = "{agent}"\n[verifier]\nuser = "{verifier}"\n{collect}'))
    assert users_of(made) <= {agent, verifier, hook}
    assert isolation(made, "0", known) == wanted


def test_an_image_with_a_program_by_which_a_user_may_become_root_isolates_nothing() -> None:
    made = plan(task('[agent]\nuser = "1000:1000"'))
    assert (isolation(made, "0"), isolation(made, "0", may_become_root=True)) == ("User", "Shared")
    apart = plan(task('[agent]\nuser = "1000:1000"\n[verifier]\nenvironment_mode = "separate"'))
    assert isolation(apart, "0", may_become_root=True) == "Separate"


def test_one_root_agent_spoils_the_isolation_of_all_steps() -> None:
    toml = f'{IMAGE}[[steps]]\nname = "a"\n[steps.agent]\nuser = "alice"\n[[steps]]\nname = "b"\n[steps.agent]\nuser = "root"'
    assert isolation(plan(toml), "0") == "Shared"


def test_without_a_verifier_an_agent_only_must_not_be_root() -> None:
    spec = {"verifier": {"disable": True}}
    assert isolation(plan(task('[agent]\nuser = "alice"'), spec), "0") == "User"
    assert isolation(plan(task(), spec), "0") == "Shared"
