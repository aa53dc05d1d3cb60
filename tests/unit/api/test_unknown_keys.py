"""Test that unknown keys of task.toml are found, and that a similar known key is suggested."""

from __future__ import annotations

from multistep.api.task.suspicious_values import UnknownKey, unknown_keys


def test_typos_have_suggestions() -> None:
    assert unknown_keys(
        """
version = "1"
unknown = 1
[environment]
memory = "1G"
docker_imgae = "x"
[environment.env]
anything = "goes"
[metadata]
also = "here"
[[steps]]
name = "a"
min_rewards = 1
min_reward = { any = 1 }
artifacts = ["/a", { source = "/b", excludes = [] }]
[steps.verifier]
retries = 3
[steps.verifier.environment.healthcheck]
comand = "x"
"""
    ) == [
        UnknownKey("unknown", None),
        UnknownKey("environment.docker_imgae", "docker_image"),
        UnknownKey("steps[0].min_rewards", "min_reward"),
        UnknownKey("steps[0].artifacts[1].excludes", "exclude"),
        UnknownKey("steps[0].verifier.retries", None),
        UnknownKey("steps[0].verifier.environment.healthcheck.comand", "command"),
    ]


def test_a_table_is_as_good_as_text() -> None:
    assert unknown_keys({"agent": {"time out": 1}}) == [UnknownKey('agent."time out"', "timeout_sec")]


def test_wrong_types_are_not_unknown_keys() -> None:
    assert unknown_keys({"agent": 1, "steps": {"name": "a"}, "verifier": [{}]}) == []
