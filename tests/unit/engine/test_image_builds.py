"""Test which images of a task the cluster builds, the digests that identify the builds, and the error if an image is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from multistep.api.task.layout import MAIN, Build, Service, Services, StepLayout, TaskLayout
from multistep.api.task.task_toml import parse_task
from multistep.api.trial.content_references import Content
from multistep.api.trial.spec import TrialSpec
from multistep.engine.builds.next_build_action import build_operations, push_operation, registries_conf
from multistep.engine.journal.operations import Reset, Start, Upload
from multistep.engine.plan.image_builds import ImageBuild, build_id, needed_builds
from multistep.engine.plan.plan_services import placeholder
from multistep.errors import InvalidSpec, InvalidTask
from tests.support.played import plan

STEPS = '[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n'
SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'
FILES = StepLayout(instruction="do", tests=True, test_script=True)
BUILT = StepLayout(instruction="do", tests=True, tests_dockerfile=True)
CONTEXT = "c" * 64
TESTS_OF_TASK = ImageBuild("tests", Content("verifier"), "tests")


def builds(toml: str, spec: Mapping[str, Any] | None = None, **layout: Any) -> list[ImageBuild]:
    made = TrialSpec.model_validate({"task": {"inline": {"config": {}}}, **(spec or {})})
    return needed_builds(parse_task(toml), TaskLayout(**layout), made, {"TOKEN": "t"})


def test_a_dockerfile_without_an_image_is_built() -> None:
    assert builds("", dockerfile=True, root=FILES) == [ImageBuild("environment", Content("environment"), "environment")]
    assert builds("", root=FILES) == []


def test_an_image_that_is_named_is_not_built() -> None:
    assert builds('[environment]\ndocker_image = "i"', dockerfile=True, root=FILES) == []
    assert builds("", {"environment": {"image": "i"}}, dockerfile=True, root=FILES) == []


def test_the_dockerfiles_of_separate_verifiers_are_built() -> None:
    found = builds(SEPARATE + STEPS, root=BUILT, steps={"a": BUILT, "b": FILES})
    assert found == [
        ImageBuild("steps/a/tests", Content("verifier", "a"), "steps/a/tests"),
        ImageBuild("tests", Content("verifier"), "tests"),
    ]
    assert [each.path for each in found] == ["steps/a/tests/Dockerfile", "tests/Dockerfile"]
    assert builds(SEPARATE, root=BUILT) == [TESTS_OF_TASK]


@pytest.mark.parametrize("spec", [{"verifier": {"disable": True}}, {}])
def test_the_dockerfiles_of_shared_verifiers_and_without_verification_are_not_built(spec: Mapping[str, Any]) -> None:
    assert builds(SEPARATE + STEPS if spec else STEPS, spec, root=BUILT, steps={"a": BUILT}) == []


def service(name: str, context: str, **keys: Any) -> Service:
    return Service(name, build=Build(context, **keys), line=3)


def composed(*services: Service, directory: str = "environment") -> Services:
    return Services(f"{directory}/docker-compose.yaml", services)


def test_the_images_of_services_are_built_from_their_directories() -> None:
    toml = '[environment]\nenv = {KEY = "${TOKEN}"}\n'
    database = service("db", "environment/db", dockerfile="D", args={"A": placeholder("KEY")}, target="dev")
    compose = composed(service(MAIN, "environment"), database, service("same", "environment"))
    main, db, same = builds(toml, dockerfile=True, root=FILES, compose=compose)
    content = Content("environment")
    assert main == ImageBuild("environment", content, "environment")
    assert db == ImageBuild("environment/docker-compose.yaml/db", content, "environment", "db", "D", {"A": "t"}, "dev")
    assert (db.path, same.path) == ("environment/db/D", "environment/Dockerfile")
    assert build_id(main, CONTEXT, "linux/amd64") == build_id(same, CONTEXT, "linux/amd64"), "one build for both"


def test_an_image_beside_a_build_of_main_names_what_is_built() -> None:
    compose = composed(Service(MAIN, image="task:latest", build=Build("environment")))
    (built,) = builds("", dockerfile=True, root=FILES, compose=compose)
    assert built == ImageBuild("environment", Content("environment"), "environment")
    found = plan("", dockerfile=True, root=FILES, compose=compose, images={"environment": "r@sha256:1"})
    assert found.image == "r@sha256:1"
    judge = Service(MAIN, image="judge:latest", build=Build("tests"))
    assert builds(SEPARATE, root=replace(BUILT, tests_compose=composed(judge, directory="tests"))) == [TESTS_OF_TASK]
    other = replace(judge, build=Build("tests/judge"))
    assert builds(SEPARATE, root=replace(BUILT, tests_compose=composed(other, directory="tests"))) == []


def test_an_image_that_the_trial_names_for_a_service_is_not_built() -> None:
    compose = composed(service(MAIN, "environment/app"), service("db", "environment/db"))
    spec = {"environment": {"image": "i", "serviceImages": {"db": "d"}}}
    assert builds("", spec, root=FILES, compose=compose) == []
    assert [each.name for each in builds("", root=FILES, compose=compose)] == [
        "environment/docker-compose.yaml/main",
        "environment/docker-compose.yaml/db",
    ]


@pytest.mark.parametrize("context", [".", "environment2", "solution"])
def test_a_context_that_the_builder_does_not_get_is_refused_with_its_line(context: str) -> None:
    with pytest.raises(
        InvalidTask, match=r"^environment/docker-compose\.yaml:3: services\.db\.build\.context: must be environment/ or"
    ):
        builds("", root=FILES, compose=composed(service("db", context)))


def test_a_separate_verifiers_compose_file_is_built_from_tests() -> None:
    compose = composed(service(MAIN, "tests"), service("judge", "tests/judge"), directory="tests")
    root = replace(BUILT, tests_compose=compose)
    content = Content("verifier")
    assert builds(SEPARATE, root=root) == [
        ImageBuild("tests", content, "tests"),
        ImageBuild("tests/docker-compose.yaml/judge", content, "tests", "judge"),
    ]


def test_a_verifier_whose_image_is_named_has_none_of_main_built() -> None:
    compose = composed(service(MAIN, "tests/own", dockerfile="D"), service("judge", "tests/judge"), directory="tests")
    toml = f'{SEPARATE}[verifier.environment]\ndocker_image = "i"\n'
    assert [each.name for each in builds(toml, root=replace(FILES, tests_compose=compose))] == ["tests/docker-compose.yaml/judge"]


def test_a_plan_has_the_built_images_of_services() -> None:
    compose = composed(service(MAIN, "environment/app"), service("db", "environment/db"))
    file = compose.path
    made = plan("", root=FILES, compose=compose, images={f"{file}/main": "m", f"{file}/db": "d"})
    assert made.services and (made.image, made.services.order[0].image) == ("m", "d")


def test_the_digest_depends_on_every_input() -> None:
    build = ImageBuild("environment", Content("environment"), "environment")
    others = [
        ImageBuild("environment", Content("environment"), "environment", directory="server"),
        ImageBuild("environment", Content("environment"), "environment", dockerfile="Other"),
        ImageBuild("environment", Content("environment"), "environment", args={"A": "1"}),
        ImageBuild("environment", Content("environment"), "environment", target="dev"),
    ]
    found = {build_id(each, CONTEXT, "linux/amd64") for each in (build, *others)}
    found |= {build_id(build, "d" * 64, "linux/amd64"), build_id(build, CONTEXT, "linux/arm64")}
    assert len(found) == 7 and all(len(each) == 64 for each in found)
    assert build_id(TESTS_OF_TASK, CONTEXT, "linux/amd64") in found, "not on where the files are"


def test_a_plan_has_the_built_images() -> None:
    made = plan(
        SEPARATE + STEPS, dockerfile=True, root=BUILT, steps={"a": FILES, "b": FILES}, images={"environment": "e", "tests": "t"}
    )
    verifier = made.steps[0].verifier
    assert verifier and verifier.environment
    assert (made.image, verifier.environment.image, verifier.environment.own_image, verifier.task_tests) == ("e", "t", True, False)


def test_without_a_built_image_the_error_names_the_value_to_set() -> None:
    with pytest.raises(InvalidSpec, match=r"^spec\.environment\.image: .*builds\.registry"):
        plan(STEPS, dockerfile=True, root=FILES)
    with pytest.raises(InvalidSpec, match=r"^tests/Dockerfile: .*builds\.registry"):
        plan(SEPARATE + STEPS, dockerfile=True, root=BUILT, images={"environment": "e"})


def test_a_build_uploads_its_context_and_runs_once() -> None:
    build = ImageBuild("environment", Content("environment"), "environment", "server", "D", {"B": "2", "A": "1"}, "dev")
    reset, context, config, start = build_operations(build, "conf", 60.0)
    assert isinstance(reset, Reset) and isinstance(context, Upload) and isinstance(config, Upload) and isinstance(start, Start)
    assert (context.content, config.content.text) == (Content("environment"), "conf")
    assert start.argv[-5:] == (
        "--file=/build/context/server/D",
        "--build-arg=A=1",
        "--build-arg=B=2",
        "--target=dev",
        "/build/context/server",
    )
    assert (start.timeout, start.kill_at_end) == (60.0, True)


def test_a_push_reads_its_credentials_from_stdin() -> None:
    plain, tls = (push_operation("push/1", "r.example/x:t", 5.0, insecure=insecure) for insecure in (True, False))
    assert "--dest-tls-verify=false" in plain.argv and "--dest-tls-verify=true" in tls.argv
    assert plain.argv[-1] == "docker://r.example/x:t" and "cat > " in plain.argv[2]


def test_mirrors_are_tried_before_the_registry() -> None:
    text = registries_conf({"docker.io": ["m.example/hub", "n.example"]}, "r.example", lambda host: host == "n.example")
    assert text.splitlines()[2:] == [
        "[[registry]]",
        'location = "docker.io"',
        "[[registry.mirror]]",
        'location = "m.example/hub"',
        "[[registry.mirror]]",
        'location = "n.example"',
        "insecure = true",
        "[[registry]]",
        'location = "r.example"',
    ]
