"""Test in which environment steps are verified (inheritance of the mode), a separate verifier's environment, and network modes."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.api.task.layout import Service, Services, StepLayout
from multistep.engine.plan.network_types import Network
from multistep.engine.plan.plan import TrialEnv, isolation
from multistep.engine.plan.verifier_environment import VerifierEnvironment
from multistep.errors import InvalidSpec, InvalidTask
from tests.support.played import COMPLETE, IMAGE, plan
from tests.unit.engine.script_cases import task


def environment(head: str = "", step: str = "", **options: Any) -> VerifierEnvironment | None:
    verifier = plan(task(head, step), **options).steps[0].verifier
    assert verifier
    return verifier.environment


TASK_SEPARATE = '[verifier]\nenvironment_mode = "separate"'
TASK_SHARED = '[verifier]\nenvironment_mode = "shared"'
TASK_OWN = '[verifier.environment]\ndocker_image = "of-task"'
STEP_SEPARATE = '[steps.verifier]\nenvironment_mode = "separate"'
STEP_SHARED = '[steps.verifier]\nenvironment_mode = "shared"'
STEP_OWN = '[steps.verifier.environment]\ndocker_image = "of-step"'


@pytest.mark.parametrize(
    ("head", "step", "image"),
    [
        ("", "", None),
        (TASK_SHARED, "", None),
        (TASK_SEPARATE, "", "img"),
        (TASK_OWN, "", "of-task"),
        ("", STEP_SEPARATE, "img"),
        ("", STEP_OWN, "of-step"),
        (TASK_SEPARATE, STEP_SHARED, None),
        (TASK_OWN, STEP_SHARED, None),
        (TASK_SHARED, STEP_SEPARATE, "img"),
        (TASK_SHARED, STEP_OWN, "of-step"),
        (TASK_OWN, STEP_SEPARATE, "of-task"),
        (TASK_OWN, STEP_OWN, "of-step"),
        (TASK_OWN, "[steps.verifier.environment]\ncpus = 2", "of-task"),
    ],
)
def test_a_steps_mode_and_environment_override_the_tasks(head: str, step: str, image: str | None) -> None:
    found = environment(head, step)
    assert (found.image if found else None) == image


def test_everything_but_the_image_comes_from_one_table() -> None:
    found = environment(
        '[verifier.environment]\ndocker_image = "of-task"\ncpus = 4', "[steps.verifier.environment]\nmemory_mb = 64"
    )
    assert found and (found.image, found.own_image, found.config.memory_mb, found.config.cpus) == ("of-task", True, 64, None)


def test_without_a_table_it_is_a_copy_of_the_tasks() -> None:
    toml = task(TASK_SEPARATE, environment='cpus = 3\nenv = {E = "${X}"}\nhealthcheck = {command = "up"}')
    env = TrialEnv(variables={"X": "1"}, environment={"F": "2"})
    verifier = plan(toml, {"environment": {"image": "built"}}, env=env, environment_files=True).steps[0].verifier
    assert verifier and verifier.environment
    found = verifier.environment
    assert (found.image, found.own_image, found.files, found.config.cpus) == ("built", False, True, 3)
    assert found.env == {"E": "1", "F": "2"}
    assert found.healthcheck and found.healthcheck.command == "up"
    assert (verifier.task_tests, verifier.step_tests) == (False, True)


def test_a_table_of_its_own_has_its_own_variables() -> None:
    toml = task('[verifier.environment.env]\nV = "1"', environment='env = {E = "1"}')
    verifier = plan(toml, env=TrialEnv(environment={"F": "2"})).steps[0].verifier
    assert verifier and verifier.environment and verifier.environment.env == {"V": "1", "F": "2"}


def test_a_variable_that_cannot_be_resolved_is_named() -> None:
    with pytest.raises(InvalidTask, match=r"^steps\.verifier\.environment\.env: .*NOWHERE"):
        environment(step='[steps.verifier.environment.env]\nV = "${NOWHERE}"')


def test_an_image_of_its_own_brings_the_tests() -> None:
    verifier = plan(task(TASK_OWN), root=COMPLETE, environment_files=True).steps[0].verifier
    assert verifier and verifier.environment
    assert (verifier.task_tests, verifier.step_tests, verifier.environment.files) == (False, False, False)


def test_a_verifiers_own_image_is_not_asked_for_what_the_agents_image_runs() -> None:
    """[environment.healthcheck] may check a server that only the agent's image has, so a verifier's own image does not get it."""
    checked = 'healthcheck = {command = "up"}'
    built = plan(task(TASK_SEPARATE, environment=checked), root=WITH_DOCKERFILE, images={"tests": "built"}).steps[0].verifier
    assert built and built.environment and (built.environment.image, built.environment.healthcheck) == ("built", None)
    own = environment(f"{TASK_OWN}\n{checked}")
    assert own and own.healthcheck and own.healthcheck.command == "up"


WITH_DOCKERFILE = StepLayout(instruction="do it", tests=True, tests_dockerfile=True)


def test_a_dockerfile_of_a_steps_tests_has_to_be_built() -> None:
    message = r"^steps/a/tests/Dockerfile: .*build it and name the image in `\[steps\.verifier\.environment\]\.docker_image`"
    with pytest.raises(InvalidSpec, match=message):
        environment(TASK_OWN, STEP_SEPARATE, steps={"a": WITH_DOCKERFILE})
    assert environment(TASK_OWN, STEP_OWN, steps={"a": WITH_DOCKERFILE})
    assert environment(steps={"a": WITH_DOCKERFILE}) is None


def test_a_dockerfile_of_the_tasks_tests_has_to_be_built() -> None:
    with pytest.raises(InvalidSpec, match=r"^tests/Dockerfile: .*`\[verifier\.environment\]\.docker_image`"):
        environment(TASK_SEPARATE, root=WITH_DOCKERFILE)
    assert environment(TASK_OWN, root=WITH_DOCKERFILE)
    single = f"{IMAGE}{TASK_SEPARATE}"
    with pytest.raises(InvalidSpec, match=r"^tests/Dockerfile"):
        plan(single, root=WITH_DOCKERFILE)


def test_without_verification_nothing_of_it_is_refused() -> None:
    assert plan(task(TASK_SEPARATE), {"verifier": {"disable": True}}, root=WITH_DOCKERFILE).separate is False


COMPOSED = Services("tests/docker-compose.yaml", (Service("db", "redis"), Service("main", "of-tests", names=("main",))))


def test_a_compose_file_in_tests_is_the_verifiers_environment() -> None:
    found = environment(TASK_SEPARATE, root=StepLayout(tests=True, tests_compose=COMPOSED))
    assert found and found.services and (found.image, found.own_image) == ("of-tests", True)
    assert [(each.name, each.image) for each in found.services.order] == [("db", "redis")]


def test_a_compose_file_in_tests_overrides_the_verifiers_image() -> None:
    without = Services("tests/docker-compose.yaml", (Service("db", "redis"),))
    found = [environment(TASK_OWN, root=StepLayout(tests=True, tests_compose=each)) for each in (COMPOSED, without)]
    assert [(each.image, each.services and len(each.services.order)) for each in found if each] == [("of-tests", 1), ("of-task", 1)]


def test_a_compose_file_in_tests_needs_an_image_of_main() -> None:
    without = Services("tests/docker-compose.yaml", (Service("db", "redis"),))
    with pytest.raises(InvalidSpec, match=r"^tests/docker-compose\.yaml: main has no image"):
        environment(TASK_SEPARATE, root=StepLayout(tests=True, tests_compose=without))


def test_a_verifier_in_the_agents_environment_definition_has_its_services() -> None:
    composed = Services("environment/docker-compose.yaml", (Service("db", "redis"),))
    found = environment(TASK_SEPARATE, compose=composed)
    assert found and found.services and [each.name for each in found.services.order] == ["db"]


def test_what_the_agents_environment_cannot_be_the_verifiers_cannot_either() -> None:
    with pytest.raises(InvalidTask, match=r"^verifier\.environment\..*not supported"):
        environment('[verifier.environment]\nos = "windows"')


@pytest.mark.parametrize(
    ("modes", "wanted"),
    [(["separate", "separate"], "Separate"), (["separate", "shared"], "User"), (["shared", "shared"], "Shared")],
)
def test_isolation_is_that_of_the_step_where_it_is_least(modes: list[str], wanted: str) -> None:
    """Agent and verifier of the first step have the same user, which weakens isolation only if they share an environment."""
    steps = "".join(
        f'[[steps]]\nname = "s{number}"\n[steps.verifier]\nenvironment_mode = "{mode}"\nuser = "{user}"\n'
        for number, (mode, user) in enumerate(zip(modes, ("alice", "judge"), strict=True))
    )
    assert isolation(plan(f'[agent]\nuser = "alice"\n{IMAGE}{steps}'), "0") == wanted


# -- network_mode

NO_NETWORK = 'network_mode = "no-network"'
ALLOWED = 'network_mode = "allowlist"\nallowed_hosts = ["10.0.0.7", "fd00::/8", "192.168.0.0/16"]'


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", Network()),
        ('network_mode = "public"', Network()),
        (NO_NETWORK, Network("no-network")),
        ("allow_internet = false", Network("no-network")),
        (ALLOWED, Network("allowlist", ("10.0.0.7/32", "fd00::/8", "192.168.0.0/16"))),
        ('network_mode = "allowlist"', Network("allowlist")),
    ],
)
def test_network_modes_where_policies_are_enforced(text: str, wanted: Network) -> None:
    assert plan(task(environment=text), egress="NetworkPolicy").network == wanted


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        (task(environment=NO_NETWORK), "environment.network_mode: no-network"),
        (task(environment=ALLOWED), "environment.network_mode: allowlist"),
        (task(f"[verifier.environment]\n{NO_NETWORK}"), "verifier.environment.network_mode: no-network"),
        (task("", f"[steps.verifier.environment]\n{NO_NETWORK}"), "steps.verifier.environment.network_mode: no-network"),
    ],
)
def test_where_they_are_not_it_shows_what_to_set(toml: str, named: str) -> None:
    with pytest.raises(InvalidSpec, match=f"^{named}.*trials.egress.*MULTISTEP_EGRESS"):
        plan(toml)


@pytest.mark.parametrize("host", ["example.org", "*.example.org"])
def test_a_host_name_is_refused_by_name(host: str) -> None:
    text = f'network_mode = "allowlist"\nallowed_hosts = ["10.0.0.7", "{host}"]'
    with pytest.raises(InvalidSpec, match=r"^environment\.allowed_hosts: '(\*\.)?example\.org' is a host name"):
        plan(task(environment=text), egress="NetworkPolicy")


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        (task(f"[agent]\n{NO_NETWORK}"), "agent.network_mode: no-network differs from the environment's public"),
        (task("", f"[steps.agent]\n{NO_NETWORK}"), r"steps\[0\].agent.network_mode"),
        (task("", f"[steps.verifier]\n{NO_NETWORK}"), r"steps\[0\].verifier.network_mode"),
        (task(f"[verifier]\n{NO_NETWORK}"), "verifier.network_mode"),
        (task('[agent]\nnetwork_mode = "public"', environment=NO_NETWORK), "agent.network_mode: public differs"),
        (
            task('[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["10.0.0.8"]', environment=ALLOWED),
            r"agent.network_mode: allowlist \(10.0.0.8\) differs",
        ),
        (task(f"[verifier]\n{NO_NETWORK}\n[verifier.environment]\ncpus = 1"), "verifier.network_mode"),
    ],
)
def test_a_network_that_changes_between_phases_is_refused_by_name(toml: str, named: str) -> None:
    with pytest.raises(InvalidSpec, match=f"^{named}.*not supported"):
        plan(toml, egress="NetworkPolicy")


def test_a_phase_may_name_its_environments_network() -> None:
    same = f"[agent]\n{NO_NETWORK}\n[verifier]\n{NO_NETWORK}"
    assert plan(task(same, environment=NO_NETWORK), egress="NetworkPolicy").network == Network("no-network")


def test_a_verifiers_environment_has_a_network_of_its_own() -> None:
    made = plan(task(f"[verifier]\n{NO_NETWORK}\n[verifier.environment]\n{NO_NETWORK}"), egress="NetworkPolicy")
    verifier = made.steps[0].verifier
    assert made.network == Network()
    assert verifier and verifier.environment and verifier.environment.network == Network("no-network")
