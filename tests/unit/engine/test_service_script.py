"""Test the operations that services add to a trial: main's command and healthcheck, and the collection of services' evidence."""

from __future__ import annotations

from multistep.api.task.layout import MAIN, Service, ServiceHealthcheck, Services, StepLayout
from multistep.engine.journal.operations import Healthcheck, Launch, ServiceHook, Source, Start
from tests.support.played import COMPLETE, IMAGE, plan, play

CHECK = ServiceHealthcheck(("ask", "7000"), interval=2, timeout=3, start_period=4, start_interval=1, retries=5)
SERVES = Service(MAIN, same_image=True, entrypoint=("serve",), command=("7000",), healthcheck=CHECK, environment={"A": "b"})
DB = Service("db", "redis", names=("db",))
COMPOSED = Services("environment/docker-compose.yaml", (DB, SERVES))
QUIET = Services("environment/docker-compose.yaml", (DB,))
ONE, TWO = '[[steps]]\nname = "a"\n', '[[steps]]\nname = "b"\n'
HOOKS = '[[verifier.collect]]\nservice = "db"\ncommand = "dump"\ntimeout_sec = 7\n[[verifier.collect]]\ncommand = "own"\n'
ARTIFACT = 'artifacts = [{source = "/dump", service = "db"}, "/own"]\n'
APART = '[verifier.environment]\ndocker_image = "judge"\n'
UNHEALTHY = {"healthy": False, "attempts": 5, "exitCode": 1}


def test_mains_command_starts_before_all_else_and_then_main_must_be_healthy() -> None:
    played = play(plan(IMAGE + ONE, compose=COMPOSED))
    assert played.ids[:4] == ["/prepare", "/main-command", "/main-healthcheck", "a/begin"]
    assert played.operation("/main-command") == Launch("1//main-command", ("serve", "7000"), env={"A": "b"})
    check = Healthcheck(
        "1//main-healthcheck", ("ask", "7000"), user="", env={"A": "b"},
        interval=2, timeout=3, start_period=4, start_interval=1, retries=5,
    )  # fmt: skip
    assert played.operation("/main-healthcheck") == check


def test_a_trial_whose_main_is_not_healthy_has_no_steps() -> None:
    played = play(plan(IMAGE + ONE, compose=COMPOSED), {"/main-healthcheck": UNHEALTHY})
    assert not played.journal.steps and played.journal.exception
    assert played.journal.exception.type == "HealthcheckError"
    assert "services.main.healthcheck: 'ask 7000' failed after 5 attempts" in played.journal.exception.message


def test_a_trial_whose_main_has_a_command_that_does_not_exist_has_no_steps() -> None:
    missing = {"error": {"code": "NotFound", "message": "serve: no such program"}}
    played = play(plan(IMAGE + ONE, compose=COMPOSED), {"/main-command": missing})
    assert not played.journal.steps and played.journal.exception
    assert "services.main.command: cannot be started: serve: no such program" in played.journal.exception.message


def test_a_file_that_says_nothing_of_main_adds_no_operation() -> None:
    assert play(plan(IMAGE + ONE, compose=QUIET)).ids == play(plan(IMAGE + ONE)).ids


def test_hooks_of_services_run_after_those_of_main_in_their_containers_with_sh_which_every_image_has() -> None:
    played = play(plan(ARTIFACT + IMAGE + HOOKS + ONE, compose=QUIET))
    hooks = [each for each in played.ids if "hook" in each]
    assert hooks == ["a/collect-hook-1", "a/collect-hook-0"] and "a/quell" not in played.ids
    argv = ("sh", "-c", "dump")
    assert played.operation("a/collect-hook-1").argv == ("bash", "-c", "own")
    assert played.operation("a/collect-hook-0") == ServiceHook("1/a/collect-hook-0", "svc-db", argv, "", timeout=7.0)
    artifacts = (Source("/logs/artifacts"), Source("/dump", container="svc-db"), Source("/own"))
    assert played.operation("a/collect").sources[2:] == artifacts


def test_the_agents_processes_are_killed_before_the_last_evidence_for_a_separate_verifier() -> None:
    played = play(plan(ARTIFACT + IMAGE + APART + HOOKS + ONE + TWO, compose=QUIET, root=COMPLETE))
    assert "a/quell" not in played.ids
    order = ["b/agent", "b/collect-hook-1", "b/quell", "b/collect-hook-0", "b/collect"]
    assert [each for each in played.ids if each in order] == order
    assert played.operation("b/quell") == Start("1/b/quell", ("/multistep/runner", "quell"), user="0", timeout=60.0)


def test_without_evidence_of_services_nothing_is_killed() -> None:
    assert "a/quell" not in play(plan(IMAGE + APART + ONE, compose=QUIET)).ids


def test_a_hook_without_a_timeout_ends_after_an_hour() -> None:
    hooks = HOOKS.replace("timeout_sec = 7", "timeout_sec = inf")
    assert play(plan(IMAGE + hooks + ONE, compose=QUIET)).operation("a/collect-hook-0").timeout == 3600.0


def test_a_verifiers_main_is_started_and_checked_in_its_pod() -> None:
    judge = Services("tests/docker-compose.yaml", (Service(MAIN, "judge", command=("serve",), healthcheck=CHECK), DB))
    config = IMAGE + '[verifier]\nenvironment_mode = "separate"\n' + ONE
    task = plan(config, root=StepLayout(tests=True, tests_compose=judge))
    played = play(task)
    assert [each for each in played.ids if "/verifier/main" in each] == ["a/verifier/main-command", "a/verifier/main-healthcheck"]
    assert played.operation("a/verifier/main-command").where == "verifier"
    failed = play(task, {"a/verifier/main-healthcheck": UNHEALTHY}).journal.steps[0].exception
    assert failed and (failed.type, failed.phase) == ("HealthcheckError", "verifier")
