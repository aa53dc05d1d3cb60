"""Which images of a task the cluster builds, the digests that identify the builds, and what trials without an image are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from multistep.api.content import Content
from multistep.api.layout import StepLayout, TaskLayout
from multistep.api.task_toml import parse_task
from multistep.api.trial_spec import TrialSpec
from multistep.engine.build_operations import build_operations, push_operation, registries_conf
from multistep.engine.image_builds import ImageBuild, build_id, needed
from multistep.engine.operations import Reset, Start, Upload
from multistep.errors import InvalidSpec
from tests.support.played import plan

STEPS = '[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n'
SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'
FILES = StepLayout(instruction="do", tests=True, test_script=True)
BUILT = StepLayout(instruction="do", tests=True, tests_dockerfile=True)
CONTEXT = "c" * 64


def builds(toml: str, spec: Mapping[str, Any] | None = None, **layout: Any) -> list[ImageBuild]:
    made = TrialSpec.model_validate({"task": {"inline": {"config": {}}}, **(spec or {})})
    return needed(parse_task(toml), TaskLayout(**layout), made)


def test_a_dockerfile_without_an_image_is_built() -> None:
    assert builds("", dockerfile=True, root=FILES) == [ImageBuild("environment", Content("environment"))]
    assert builds("", root=FILES) == []


def test_an_image_that_is_named_is_not_built() -> None:
    assert builds('[environment]\ndocker_image = "i"', dockerfile=True, root=FILES) == []
    assert builds("", {"environment": {"image": "i"}}, dockerfile=True, root=FILES) == []


def test_the_dockerfiles_of_separate_verifiers_are_built() -> None:
    found = builds(SEPARATE + STEPS, root=BUILT, steps={"a": BUILT, "b": FILES})
    assert found == [ImageBuild("steps/a/tests", Content("verifier", "a")), ImageBuild("tests", Content("verifier"))]
    assert [each.path for each in found] == ["steps/a/tests/Dockerfile", "tests/Dockerfile"]
    assert builds(SEPARATE, root=BUILT) == [ImageBuild("tests", Content("verifier"))]


@pytest.mark.parametrize("spec", [{"verifier": {"disable": True}}, {}])
def test_the_dockerfiles_of_shared_verifiers_and_without_verification_are_not_built(spec: Mapping[str, Any]) -> None:
    assert builds(SEPARATE + STEPS if spec else STEPS, spec, root=BUILT, steps={"a": BUILT}) == []


def test_the_digest_depends_on_every_input() -> None:
    build = ImageBuild("environment", Content("environment"))
    others = [
        ImageBuild("environment", Content("environment"), directory="server"),
        ImageBuild("environment", Content("environment"), dockerfile="Other"),
        ImageBuild("environment", Content("environment"), args={"A": "1"}),
        ImageBuild("environment", Content("environment"), target="dev"),
    ]
    found = {build_id(each, CONTEXT, "linux/amd64") for each in (build, *others)}
    found |= {build_id(build, "d" * 64, "linux/amd64"), build_id(build, CONTEXT, "linux/arm64")}
    assert len(found) == 7 and all(len(each) == 64 for each in found)
    assert build_id(ImageBuild("tests", Content("verifier")), CONTEXT, "linux/amd64") in found, "not on where the files are"


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
    build = ImageBuild("environment", Content("environment"), "server", "D", {"B": "2", "A": "1"}, "dev")
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
