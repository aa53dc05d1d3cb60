"""task.toml is parsed as Harbor 0.26 parses it. Errors name the field and the valid values."""

from __future__ import annotations

import math
import tomllib

import pytest

from multistep.api.task.task_toml import ArtifactConfig, TaskConfig, parse_task
from multistep.errors import InvalidTask

STEP = '[[steps]]\nname = "a"\n'


def refused(text: str) -> InvalidTask:
    with pytest.raises(InvalidTask) as caught:
        parse_task(text)
    return caught.value


def test_an_empty_file_is_a_single_step_task_with_defaults() -> None:
    config = parse_task("")
    assert config.steps is None
    assert config.schema_version == "1.4"
    assert config.verifier.timeout_sec == 600
    assert config.agent.timeout_sec is None
    assert config.environment.build_timeout_sec == 600
    assert config.environment.network_mode == "public"


def test_models_do_not_share_their_defaults() -> None:
    one, other = TaskConfig(), TaskConfig()
    one.environment.env["A"] = "b"
    assert other.environment.env == {}


def test_a_whole_step() -> None:
    (step,) = (
        parse_task(
            STEP
            + """
min_reward = { correctness = 0.8, style = "0.5" }
artifacts = ["/app/x", { source = "/app/y", destination = "", exclude = ["*.log"] }]
[steps.agent]
timeout_sec = 60
user = 1000
[steps.verifier]
user = "alice"
env = { A = "${A:-b}" }
collect = [{ command = "true" }]
[steps.healthcheck]
command = "test -f /ready"
"""
        ).steps
        or []
    )
    assert step.min_reward == {"correctness": 0.8, "style": 0.5}
    assert step.artifacts == [ArtifactConfig(source="/app/x"), ArtifactConfig(source="/app/y", exclude=["*.log"])]
    assert (step.agent.timeout_sec, step.agent.user, step.verifier.user) == (60, 1000, "alice")
    assert step.verifier.collect[0].timeout_sec == 60
    assert step.healthcheck is not None
    assert (step.healthcheck.interval_sec, step.healthcheck.timeout_sec, step.healthcheck.retries) == (5, 30, 3)


@pytest.mark.parametrize(
    ("text", "attribute", "value"),
    [
        ('version = "0.9"', "schema_version", "0.9"),
        ('version = "1"\nschema_version = "2"', "schema_version", "2"),
        ('agent.timeout_sec = "60"', "agent.timeout_sec", 60),
        ("agent.timeout_sec = true", "agent.timeout_sec", 1),
        ("agent.timeout_sec = -1", "agent.timeout_sec", -1),
        ("agent.user = 0", "agent.user", 0),
        ('agent.user = "0"', "agent.user", "0"),
        ('environment.os = "LINUX"', "environment.os", "linux"),
        ("environment.cpus = 2.0", "environment.cpus", 2),
        ("environment.cpus = 0.5", "environment.cpus", 0.5),
        ("environment.gpus = 1.0", "environment.gpus", 1),
        ('environment.memory = "2G"', "environment.memory_mb", 2048),
        ('environment.memory = " 1.5g "', "environment.memory_mb", 1536),
        ('environment.storage = "10K"', "environment.storage_mb", 0),
        ('environment.memory = "2G"\nenvironment.memory_mb = 2048', "environment.memory_mb", 2048),
        ("environment.memory = 2", "environment.memory_mb", None),
        ("environment.allow_internet = false", "environment.network_mode", "no-network"),
        ('environment.allow_internet = false\nenvironment.network_mode = "public"', "environment.network_mode", "public"),
        ("environment.allow_internet = false\nenvironment.allowed_hosts = []", "environment.network_mode", "public"),
        ('unknown = 1\n[verifier]\nretries = "x"', "verifier.timeout_sec", 600),
        ("metadata = { any = [1, { thing = 1979-05-27 }] }", "verifier.environment_mode", None),
        ("steps = []", "steps", []),
    ],
)
def test_what_is_forgiven(text: str, attribute: str, value: object) -> None:
    found: object = parse_task(text)
    for part in attribute.split("."):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value) or isinstance(found, float)


@pytest.mark.parametrize("value", ["nan", "-inf"])
def test_gates_need_not_be_finite(value: str) -> None:
    gate = (parse_task(STEP + f"min_reward = {value}").steps or [])[0].min_reward
    assert isinstance(gate, float)
    assert not math.isfinite(gate)


@pytest.mark.parametrize(
    ("host", "normal"),
    [
        ("A.com.", "a.com"),
        ("*.A.com", "*.a.com"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("10.1.2.3", "10.1.2.3"),
    ],
)
def test_allowed_hosts_are_normalised(host: str, normal: str) -> None:
    config = parse_task(f'agent = {{ network_mode = "allowlist", allowed_hosts = ["{host}"] }}')
    assert config.agent.allowed_hosts == [normal]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema_version = 1.1", "schema_version: should be a valid string, in quotes; got 1.1"),
        (STEP + "min_reward = [1.0]", "steps[0].min_reward: should be a valid number or a valid table; got [1.0]"),
        ("[[steps]]\nmin_reward = 1.0", "steps[0].name: is required, but missing"),
        (STEP + "[steps.verifier.env]\nX = 1", "steps[0].verifier.env.X: should be a valid string, in quotes; got 1"),
        (STEP + "healthcheck = { retries = 1 }", "steps[0].healthcheck.command: is required, but missing"),
        ('multi_step_reward_strategy = "Mean"', "should be 'mean' or 'final'; got 'Mean'"),
        ("steps = { name = 'a' }", "steps: should be a valid list"),
        ("steps = [1]", "steps[0]: should be a table; got 1"),
        ("version = 1.0", "version: should be a valid string, in quotes; got 1.0"),
        (f"{STEP}{STEP}", "steps[1].name: names must differ by more than case, and an earlier step is 'a'; got 'a'"),
        (
            'environment = { network_mode = "allowlist", allowed_hosts = ["https://u@pypi.org:443/simple"] }',
            "URLs, ports and paths cannot be allowed: write the host only, 'pypi.org'",
        ),
        ("environment.gpus = 1.5", "environment.gpus: should be a valid integer"),
        ("environment.cpus = inf", "environment.cpus: must be a finite number"),
        ('environment.memory = "2T"', "memory = '2T' must be a number with K, M or G"),
        ('environment.memory = "2G"\nenvironment.memory_mb = 1', "contradicts memory_mb = 1: keep only memory_mb"),
        ('environment.allowed_hosts = ["a.com"]', "environment: allowed_hosts needs network_mode = 'allowlist'"),
        ("agent.allowed_hosts = []", "agent: allowed_hosts needs network_mode = 'allowlist'"),
        ('verifier = { environment_mode = "shared", environment = {} }', "verifier: environment_mode 'shared' and"),
        ('verifier.collect = [{ command = "x", service = "a b" }]', "verifier.collect[0].service: must be a service"),
        ('task.name = "hello"', "task.name: must be 'org/name'"),
        ('task.name = "a/b"\ntask.version = ""', "task.version: should have at least 1 character"),
        ('artifacts = [{ source = "db.sql", service = "db" }]', "artifacts[0]: source must be an absolute path"),
        ('environment.tpu = { type = "v4", topology = "2" }', "environment.tpu.topology: must be like 2x4"),
        ('environment.mcp_servers = [{ name = "a" }]', "url is required for transport 'sse'"),
        ('environment.mcp_servers = [{ name = "a", transport = "stdio" }]', "command is required for transport 'stdio'"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    error = refused(text)
    assert error.kind == "ValidationError"
    assert message in str(error)


@pytest.mark.parametrize("text", ["schema_version = ", "a = 1\na = 2", "\ufeffx = 1", "[" * 5000])
def test_what_is_no_toml(text: str) -> None:
    error = refused(text)
    assert (error.kind, error.field) == ("TOMLDecodeError", "task.toml")


NEWER = {  # what TOML 1.1 allows, by its name; Harbor reads TOML 1.0
    "a comma at the end of a table": "metadata = { a = 1, }",
    "a line break in a table": "metadata = { a = 1,\nb = 2 }",
    "an escape character": r'metadata = { a = "\e" }',
    "a byte as hex": r'metadata = { a = "\x41" }',
    "a time without seconds": "metadata = { a = 07:32 }",
}


@pytest.mark.parametrize("text", NEWER.values(), ids=NEWER)
def test_the_grammar_is_that_of_harbors_tomllib(text: str) -> None:
    with pytest.raises(tomllib.TOMLDecodeError):
        tomllib.loads(text)
    assert refused(text).kind == "TOMLDecodeError"


def test_every_problem_has_a_line() -> None:
    error = refused("schema_version = 1\n[agent]\ntimeout_sec = 'x'\n[[steps]]\nmin_reward = 1")
    assert [line.split(":")[0] for line in str(error).splitlines()] == [
        "schema_version",
        "steps[0].name",
        "agent.timeout_sec",
    ]
    assert error.field == "schema_version"


@pytest.mark.parametrize("source", ["..", "a/../b", "/a/.."])
def test_artifact_sources_do_not_lead_up(source: str) -> None:
    assert "'..'" in str(refused(f'artifacts = ["{source}"]'))


@pytest.mark.parametrize("destination", ["/a", "../a", "a/..", ".", "./", "a\\\\b", "manifest.json", "manifest.json/"])
def test_artifact_destinations_stay_below(destination: str) -> None:
    error = refused(f'artifacts = [{{ source = "/a", destination = "{destination}" }}]')
    assert error.field == "artifacts[0].destination"


@pytest.mark.parametrize("destination", ["a", "a/b", "./manifest.json", "a/manifest.json", "MANIFEST.JSON", " "])
def test_artifact_destinations_may_be_odd(destination: str) -> None:
    config = parse_task(f'artifacts = [{{ source = "/a", destination = "{destination}" }}]')
    assert config.artifacts[0].destination == destination
