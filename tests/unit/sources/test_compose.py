"""The services of a task's compose file, read by the real compose reader."""

from __future__ import annotations

import base64
import io
import tarfile

import pytest

from hack import image
from multistep.api.task.layout import Build, Dependency, Mount, Service, Services
from multistep.engine.plan.plan_services import placeholder
from multistep.errors import InvalidTask
from multistep.sources.reader.read_messages import ReadAnswer, parse_answer
from multistep.sources.task.task import load_task

from .trees import TOML, task

FILE = "environment/docker-compose.yaml"


@pytest.fixture(scope="session", autouse=True)
def _reader() -> None:
    image.ensure_compose_reader()


def services(text: str, files: dict[str, str] | None = None, toml: str = TOML) -> Services:
    found = load_task(task({"task.toml": toml, FILE: text, **(files or {})})).layout.compose
    assert found is not None
    return found


def service(keys: str, files: dict[str, str] | None = None, more: str = "", toml: str = TOML) -> Service:
    [found] = services(f"services:\n  db:\n    image: redis\n{keys}{more}", files, toml).others
    return found


def error(text: str, files: dict[str, str] | None = None) -> InvalidTask:
    with pytest.raises(InvalidTask) as caught:
        services(text, files)
    return caught.value


def test_a_service_is_read_as_compose_reads_it() -> None:
    found = services(
        """\
services:
  db:
    image: redis
    command: redis-server --port 6379
    entrypoint: ["tini", "--"]
    environment: [A=1, "B=${A:-two}"]
    user: "1000:1000"
    ports: ["16379:6379"]
    deploy: {resources: {limits: {cpus: "0.5", memory: 64M}}}
    restart: always
    depends_on: {seed: {condition: service_completed_successfully}}
  seed: {image: "${MAIN_IMAGE_NAME}"}
"""
    ).others[0]
    assert (found.command, found.entrypoint) == (("redis-server", "--port", "6379"), ("tini", "--"))
    assert (found.environment, found.user, found.ports) == ({"A": "1", "B": "two"}, "1000:1000", ("6379/tcp",))
    assert (found.cpus, found.memory_bytes, found.restarts) == (0.5, 64 << 20, True)
    assert found.depends_on == (Dependency("seed", "completed"),)


def test_what_the_image_sets_is_not_overridden() -> None:
    assert service("") == Service("db", "redis", names=("db",), line=2)


def test_main_is_merged_over_harbors_base() -> None:
    read = services("services:\n  main:\n    environment: {A: b}\n    working_dir: /x\n")
    assert (read.main.same_image, read.main.environment, read.main.working_dir, read.others) == (True, {"A": "b"}, "/x", ())
    assert services("services:\n  main: {image: other}\n").main.image == "other"
    assert services("services:\n  main: {build: .}\n").main.build == Build("environment")


def test_files_of_the_task_are_part_of_the_model() -> None:
    files = {"environment/conf/a.conf": "a", "environment/key": "secret"}
    read = services(
        """\
services:
  db:
    image: redis
    volumes: ["./conf:/etc/db:ro", data:/data, "/cache"]
    secrets: [key]
    configs: [{source: text, target: /text, mode: 0400}]
    tmpfs: ["/tmp:size=1m"]
volumes: {data: {}}
secrets: {key: {file: ./key}}
configs: {text: {content: hello}}
""",
        files,
    )
    assert read.others[0].mounts == (
        Mount("file", "/etc/db", "0", read_only=True),
        Mount("volume", "/data", "data"),
        Mount("volume", "/cache"),
        Mount("tmpfs", "/tmp", size_bytes=1 << 20),
        Mount("file", "/text", "1", read_only=True, mode=0o400),
        Mount("file", "/run/secrets/key", "2", read_only=True),
    )
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(read.files))) as tar:
        contents = {each.name: (each.mode, file.read() if (file := tar.extractfile(each)) else None) for each in tar}
    assert contents == {
        "0": (0o755, None), "0/a.conf": (0o644, b"a"), "1": (0o400, b"hello"), "2": (0o644, b"secret"),
    }  # fmt: skip


def test_env_files_are_files_of_the_task() -> None:
    keys = "    env_file: [a.env, {path: b.env, required: false}]\n    environment: {B: own}\n"
    assert service(keys, {"environment/a.env": "A=1\nB='x'\nC=$A\n"}).environment == {"A": "1", "B": "own", "C": "1"}
    keys = "    env_file: missing.env\n"
    assert str(error("services:\n  db:\n    image: x\n" + keys)) == f"{FILE}:4: environment/missing.env does not exist in the task"


@pytest.mark.parametrize("path", ["/proc/self/environ", "../../secret", "~/x"])
def test_no_file_outside_of_the_task_is_read(path: str) -> None:
    text = str(error(f"services:\n  db:\n    image: x\n    env_file: {path}\n    volumes: ['{path}:/x']\n"))
    assert text.splitlines() == [
        f"{FILE}:4: services.db.env_file: must be a path in the task, relative to environment/; got {path!r}".replace("'", '"'),
        f"{FILE}:5: services.db.volumes.0: must be a path in the task, relative to environment/; got {path!r}".replace("'", '"'),
    ]


def test_all_that_is_refused_is_named_with_key_and_line() -> None:
    found = error("include: [x.yaml]\nservices:\n  db:\n    image: x\n    gpus: all\n    ulimits: {nofile: 1}\n    sort: 1\n")
    assert [each.field for each in found.parts] == [
        f"{FILE}:1: include", f"{FILE}:5: services.db.gpus", f"{FILE}:6: services.db.ulimits", f"{FILE}:7: services.db.sort",
    ]  # fmt: skip
    assert str(found.parts[3]).endswith("is not a key of the compose specification")


@pytest.mark.parametrize("second", ["services:\n  db:\n    image: x\n    ulimits: {nofile: 1}\n", "include: [x.yaml]\n"])
def test_a_second_document_in_the_file_is_refused(second: str) -> None:
    found = error(f"services:\n  main: {{}}\n---\n{second}")
    assert str(found) == f"{FILE}:3: must be one document, but another one begins here"


def test_a_file_with_more_values_than_are_checked_is_refused() -> None:
    many = "".join(f"  s{number}:\n    image: x\n    command: *long\n" for number in range(300))
    found = error(f"x-long: &long [{','.join('a' * 400)}]\nservices:\n{many}  z: {{image: x, ulimits: {{nofile: 1}}}}\n")
    assert "has more than 100000 values, each alias counted at each use" in str(found)


@pytest.mark.parametrize(
    "text",
    [
        "x-old: &old {profiles: [old]}\nservices:\n  db:\n    <<: *old\n    image: x\n    ulimits: {nofile: 1}\n    profiles: []\n",
        "services:\n  a: {profiles: [old], image: x, ulimits: {nofile: 1}}\n  db:\n    extends: a\n    profiles: !reset []\n",
        "services:\n  a: {profiles: [old], image: x, ulimits: {nofile: 1}}\n  db: {extends: {service: a}, profiles: !reset []}\n",
        "services:\n  db: {profiles: !reset [old], image: x, ulimits: {nofile: 1}}\n",
    ],
)
def test_all_keys_of_a_service_that_runs_are_checked_whatever_its_profiles(text: str) -> None:
    assert "ulimits: is not supported" in str(error(text))


def test_a_file_to_extend_is_refused_for_a_service_of_an_inactive_profile() -> None:
    found = error("services:\n  db:\n    profiles: [old]\n    extends: {file: /etc/x.yaml, service: x}\n")
    assert str(found) == f"{FILE}:4: services.db.extends.file: is not supported: copy the service into this file"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("healthcheck: {test: [CMD]}", "services.db.healthcheck: has no command after CMD in its test"),
        ("extra_hosts: ['a:b']", 'services.db.extra_hosts: a must have an IP address; got "b"'),
        ("deploy: {resources: {limits: {cpus: '1'}, reservations: {cpus: '2'}}}",
         "services.db.deploy: reserves 2 CPUs, more than the limit of 1"),
        ("{mem_limit: 1k, mem_reservation: 2k}", "services.db: reserves 2048 bytes of memory, more than the limit of 1024"),
    ],
)  # fmt: skip
def test_what_the_api_server_would_reject_is_refused(keys: str, message: str) -> None:
    text = "\n".join(f"    {each}" for each in (keys[1:-1].split(", ") if keys.startswith("{") else [keys]))
    assert str(error(f"services:\n  db:\n    image: x\n{text}\n")).endswith(message)


def test_an_empty_entrypoint_needs_a_command() -> None:
    assert "services.db.entrypoint: is empty" in str(error("services:\n  db:\n    image: x\n    entrypoint: []\n"))
    assert service("    entrypoint: []\n    command: [a]\n").entrypoint == ()


def test_protocols_of_ports_have_no_case() -> None:
    assert service("    expose: [80/TCP]\n    ports: ['81:81/UDP']\n").ports == ("80/tcp", "81/udp")


@pytest.mark.parametrize("keys", ["read_only: true", "cap_drop: [ALL]"])
def test_what_the_container_of_the_trial_cannot_have_is_refused_for_main(keys: str) -> None:
    assert f"{FILE}:3: services.main.{keys.partition(':')[0]}: must be " in str(error(f"services:\n  main:\n    {keys}\n"))


@pytest.mark.parametrize(
    ("keys", "restarts"),
    [
        ("restart: always", True),
        ("deploy: {restart_policy: {condition: any}}", True),
        ("deploy: {restart_policy: {condition: none}}\n    restart: always", False),
        ("deploy: {restart_policy: {max_attempts: 3}}", False),
    ],
)
def test_a_service_restarts_if_compose_would_restart_it(keys: str, *, restarts: bool) -> None:
    assert service(f"    {keys}\n").restarts is restarts


def test_variables_are_those_of_the_environments_table() -> None:
    toml = '[environment]\ncpus = 2\nenv = {PLAIN = "p", KEY = "${KEY}"}\n' + TOML
    keys = "    environment: [PLAIN, 'K=${KEY}', 'C=${CPUS}', OTHER]\n"
    assert service(keys, toml=toml).environment == {"PLAIN": "p", "K": "\ue000KEY\ue001", "C": "2"}


def test_the_file_of_a_task_that_harbor_made_of_a_terminal_bench_task_is_read() -> None:
    text = """\
services:
  main:
    build: {context: "${CONTEXT_DIR}"}
    image: ${MAIN_IMAGE_NAME}
    command: ["sh", "-c", "sleep infinity"]
    environment: ["TEST_DIR=${TEST_DIR}"]
    deploy: {resources: {limits: {cpus: "${CPUS}", memory: "${MEMORY}"}}}
"""
    read = services(text, toml="[environment]\ncpus = 2\nmemory_mb = 64\n" + TOML)
    assert read.main.environment == {"TEST_DIR": "/tests"} and not read.variables
    assert (read.main.build, read.main.cpus, read.main.memory_bytes) == (Build("environment"), 2.0, 64 << 20)


def test_a_variable_without_a_value_is_the_trials() -> None:
    read = services("services:\n  db:\n    image: x\n    environment: {K: '${KEY}', L: '${LATER:-}', M: '${KEY}'}\n")
    assert read.variables == {"KEY": f"{FILE}:4: services.db.environment.K"}
    assert read.others[0].environment == {"K": placeholder("KEY"), "L": "", "M": placeholder("KEY")}


@pytest.mark.parametrize(
    "keys", ["user: '${KEY}'", "build: {context: '${KEY}'}", "ports: ['${KEY}:1']", "healthcheck: {test: x, retries: '${KEY}'}"]
)
def test_a_variable_without_a_value_is_refused_where_the_trial_cannot_set_it(keys: str) -> None:
    text = str(error(f"services:\n  db:\n    image: x\n    {keys}\n"))
    assert f"{FILE}:4: services.db." in text and "uses ${KEY}, which is not set: add it to environment.env" in text


def test_a_file_that_is_no_compose_file_is_refused() -> None:
    assert "is not YAML" in str(error("services: [\n"))
    assert "services.db.image" in str(error("services:\n  db: {image: [1]}\n"))


def test_the_answer_of_the_child_has_the_services() -> None:
    read = load_task(task({FILE: "services:\n  db: {image: x, healthcheck: {test: [CMD, a]}}\n"}))
    answer = ReadAnswer("d", {}, read.layout, (), {})
    assert parse_answer(answer.to_json()).layout == read.layout
