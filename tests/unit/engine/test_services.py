"""Test how the services of a compose file are converted to containers and volumes of a pod."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from multistep.api.task.layout import MAIN, Build, Dependency, Mount, Service, ServiceHealthcheck, Services
from multistep.api.trial.spec import FromSpec
from multistep.engine.plan.plan import TrialEnv
from multistep.engine.plan.plan_services import FILES_VOLUME, PodServices, placeholder, plan_mounts, plan_services
from multistep.errors import InvalidSpec, InvalidTask
from tests.support.played import IMAGE, plan

FILE = "environment/docker-compose.yaml"
STEP = '[[steps]]\nname = "a"\n'


def service(name: str, *after: tuple[str, str], **keys: Any) -> Service:
    depends = tuple(Dependency(other, condition) for other, condition in after)  # type: ignore[arg-type]
    return Service(name, **{"image": name, "names": (name,), "depends_on": depends, "line": 3, **keys})


def services(*given: Service, **options: Any) -> PodServices:
    arguments = {"image": "of-main", "images": {}, "env": {}, **options}
    return plan_services(Services(FILE, given), **arguments)


def test_services_start_after_those_that_they_depend_on() -> None:
    found = services(
        service("app", ("db", "healthy"), ("seed", "completed")),
        service("db"),
        service("seed", ("db", "started")),
        service(MAIN, ("app", "healthy"), same_image=True, image=""),
    )
    assert [(each.name, each.once) for each in found.order] == [("db", False), ("seed", True), ("app", False)]
    assert found.names == ("app", "db", "seed", "main")


def test_images_are_those_of_the_trial_the_file_or_main() -> None:
    built = service("built", build=Build("environment/built"))
    found = services(service("db"), built, service("same", same_image=True), images={"built": "registry/built:1"})
    assert [each.image for each in found.order] == ["db", "registry/built:1", "of-main"]
    with pytest.raises(
        InvalidSpec, match=r"serviceImages: the image of service 'built' must be built from environment/built/Docker"
    ):
        services(built)


def test_the_values_of_a_files_variables_are_the_trials() -> None:
    db = service("db", environment={"K": placeholder("KEY"), "E": placeholder("ENV")})
    files = Services(FILE, (db,), variables={"KEY": f"{FILE}:3: services.db.environment.K"})
    toml = '[environment]\ndocker_image = "i"\nenv = {ENV = "${V}"}\n'
    made = plan(toml, compose=files, env=TrialEnv(variables={"KEY": "k", "V": "v"}))
    assert made.services and made.services.order[0].service.environment == {"K": "k", "E": "v"}
    with pytest.raises(InvalidTask, match=r":3: services\.db\.environment\.K: uses \$\{KEY\}, which is not set"):
        plan(IMAGE, compose=files)


def test_a_healthcheck_is_a_probe_that_allows_as_much_time() -> None:
    check = ServiceHealthcheck(("true",), interval=30, timeout=2.5, start_period=60, start_interval=5, retries=3)
    [db] = services(service("db", healthcheck=check)).order
    assert db.probe and (db.probe.period, db.probe.timeout, db.probe.failures) == (5, 3, 30)
    [db] = services(service("db", healthcheck=replace(check, interval=0.5, start_period=0, retries=1))).order
    assert db.probe and (db.probe.period, db.probe.failures) == (1, 1)


def test_a_service_that_completes_has_no_probe() -> None:
    seed = service("seed", healthcheck=ServiceHealthcheck(("true",)))
    assert [each.probe for each in services(seed, service("db", ("seed", "completed"))).order] == [None, None]


def test_values_that_only_the_trial_knows_are_filled_in() -> None:
    text = f"k={placeholder('KEY')}"
    check = ServiceHealthcheck(("check", text))
    given = service("db", environment={"K": text}, command=(text,), entrypoint=None, image=placeholder("I"), healthcheck=check)
    [db] = services(given, env={"KEY": "secret", "I": "redis"}).order
    assert (db.service.environment, db.service.command, db.service.entrypoint) == ({"K": "k=secret"}, ("k=secret",), None)
    assert (db.image, db.probe and db.probe.argv) == ("redis", ("check", "k=secret"))


def test_a_service_may_not_wait_for_main() -> None:
    waiting = service("client", (MAIN, "started"))
    assert services(waiting).order  # main has no command of its own, so it counts as started
    with pytest.raises(InvalidTask, match=rf"^{FILE}:3: services.client.depends_on: must not have main"):
        services(waiting, service(MAIN, command=("serve",)))
    with pytest.raises(InvalidTask, match="must not have main"):
        services(service("client", (MAIN, "healthy")))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            [service("a", ports=("80/tcp",)), service("b", ports=("80/tcp",))],
            "services.b.ports: 80/tcp is also a port of service 'a'",
        ),
        ([service("a_b")], "services.a_b: 'a_b' must be a host name"),
        ([service("a" * 64)], "must be a host name of at most 59"),
        ([service("a.b"), service("a-b")], "services.a-b: must differ from 'a.b'"),
    ],
)
def test_services_that_cannot_share_a_pod_are_refused(given: list[Service], message: str) -> None:
    with pytest.raises(InvalidTask, match=message):
        services(*given)


def test_a_named_volume_is_shared_and_filled_by_its_first_service() -> None:
    data = Mount("volume", "/data", "data")
    found = services(
        service("a", mounts=(data, Mount("volume", "/own"), Mount("tmpfs", "/tmp", size_bytes=5), Mount("file", "/etc/a", "0"))),
        service("b", mounts=(replace(data, target="/other"), replace(data, source="raw", no_copy=True)), shm_bytes=7),
        service(MAIN, mounts=(replace(data, subpath="below"),)),
    )
    mounts = plan_mounts(found)
    first, own, memory, file = mounts.of("a")
    assert (first.copied, own.copied, memory.copied, file.copied) == (True, True, False, False)
    assert (memory.volume.memory, memory.volume.size_bytes, file.volume.name, file.subpath) == (True, 5, FILES_VOLUME, "0")
    other, raw, shm = mounts.of("b")
    assert (other.volume, other.copied, raw.copied, shm.target, shm.volume.size_bytes) == (
        first.volume,
        False,
        False,
        "/dev/shm",
        7,
    )
    assert mounts.of(MAIN)[0].subpath == "below"
    assert len(mounts.volumes) == len({each.name for each in mounts.volumes}) == 6


def test_a_service_that_compose_would_start_again_may_end() -> None:
    found = services(service("db"), service("web", restarts=True), service("seed"), service("x", ("seed", "completed")))
    assert found.may_end == ("svc-web",)
    assert found.container_of("web") == "svc-web"


def composed(*given: Service) -> dict[str, Any]:
    return {"compose": Services(FILE, given)}


def test_main_is_the_trials_container() -> None:
    main = service(MAIN, image="", same_image=True, environment={"A": "file", "B": "file"}, working_dir="/file", command=("serve",))
    toml = f'[environment]\ndocker_image = "img"\nenv = {{B = "toml"}}\n{STEP}'
    found = plan(toml, **composed(main, service("db")))
    assert (found.image, found.environment_env, found.workdir) == ("img", {"A": "file", "B": "toml"}, "/file")
    assert found.services and found.services.background == ("serve",)
    assert plan(toml, **composed(replace(main, image="own", same_image=False))).image == "own"
    assert plan(toml, {"environment": {"image": "given"}}, **composed(replace(main, image="own"))).image == "given"


def test_an_image_of_main_that_is_built_elsewhere_must_be_named() -> None:
    with pytest.raises(InvalidSpec, match="the image of main must be built from environment/app/Dockerfile"):
        plan(f"{IMAGE}{STEP}", **composed(service(MAIN, build=Build("environment/app"))))
    assert plan(f"{IMAGE}{STEP}", **composed(service(MAIN, image="", build=Build("environment")))).image


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"verifier": {"isolation": "Separate"}}, "spec.verifier.isolation"),
        ({"checkpoints": {"policy": "AfterStep"}}, "spec.checkpoints.policy"),
        ({"from": FromSpec(trial="t", step="a")}, "spec.from"),
        ({"fromStep": "b"}, "spec.fromStep"),
    ],
)
def test_what_would_lose_the_services_state_is_refused(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSpec, match=f"^{field}: must .*state is in no checkpoint"):
        plan(f'{IMAGE}{STEP}[[steps]]\nname = "b"\n', spec, **composed(service("db")))
