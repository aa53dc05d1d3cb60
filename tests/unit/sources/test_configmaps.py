"""Bundles are stored in ConfigMaps, or inline in the trial."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from multistep.api.trial.task_source import InlineSource
from multistep.api.trial.trial import parse_trial
from multistep.errors import InvalidSpec, NotFound, SourceError
from multistep.sources.reader.read_task import TaskReader
from multistep.sources.task import stored_bundles
from multistep.sources.task.bundle import BundleLimits, digest_of, pack_directory
from multistep.sources.task.stored_bundles import inline_bundle

EXAMPLES = Path(__file__).parents[3] / "examples"


class Cluster:
    """A cluster with only the ConfigMaps of one namespace."""

    def __init__(self, config_maps: list[dict[str, Any]]) -> None:
        self._config_maps = {found["metadata"]["name"]: found for found in config_maps}

    async def get(self, name: str) -> Mapping[str, Any]:
        try:
            return self._config_maps[name]
        except KeyError:
            raise NotFound(name) from None


@given(st.binary(max_size=100), st.integers(1, 50))
def test_what_is_split_can_be_joined(data: bytes, part_bytes: int) -> None:
    parts = stored_bundles.split_bundle(data, "task", part_bytes=part_bytes)
    assert stored_bundles.join_bundle(parts, digest_of(data)) == data


def test_parts_fit_into_an_object_and_are_immutable() -> None:
    parts = stored_bundles.split_bundle(bytes(2_000_000), "hello")
    assert [part["metadata"]["name"] for part in parts] == [
        f"hello-bundle-{digest_of(bytes(2_000_000))[7:19]}-{n}" for n in range(3)
    ]
    assert all(part["immutable"] and len(json.dumps(part)) < 1_000_000 for part in parts)


def test_long_names_are_cut() -> None:
    assert len(stored_bundles.split_bundle(b"", "x" * 300)[0]["metadata"]["name"]) <= 253


def test_other_bytes_are_refused() -> None:
    parts = stored_bundles.split_bundle(b"some bytes", "t", part_bytes=5)
    with pytest.raises(SourceError, match="package the task again"):
        stored_bundles.join_bundle(parts[::-1], digest_of(b"some bytes"))
    with pytest.raises(SourceError, match="limit of 3"):
        stored_bundles.join_bundle(parts, digest_of(b"some bytes"), BundleLimits(compressed=3))
    for broken in ({}, {"metadata": {"name": "m"}, "binaryData": {"part": "!"}}, {"binaryData": None}):
        with pytest.raises(SourceError, match="is not part of a bundle"):
            stored_bundles.join_bundle([broken], "")


async def test_a_trial_finds_its_bundle(tmp_path: Path) -> None:
    data = pack_directory(EXAMPLES / "hello-multi-step-advanced")
    parts = stored_bundles.split_bundle(data, "hello", part_bytes=1000)
    names = [part["metadata"]["name"] for part in parts]
    path = tmp_path / "parts"
    await stored_bundles.spool_bundle(Cluster(parts).get, names, path)
    task = await TaskReader(tmp_path).file("parts", path, digest_of(data), verification=True, oracle=False)
    assert task.layout.dockerfile


async def test_a_config_map_that_is_not_there_may_still_come(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="ConfigMap a does not exist") as caught:
        await stored_bundles.spool_bundle(Cluster([]).get, ["a"], tmp_path / "parts")
    assert caught.value.transient


async def test_parts_are_bounded_and_must_be_parts(tmp_path: Path) -> None:
    parts = stored_bundles.split_bundle(b"some bytes", "task", part_bytes=4)
    names = [part["metadata"]["name"] for part in parts]
    with pytest.raises(SourceError, match="limit") as caught:
        await stored_bundles.spool_bundle(Cluster(parts).get, names, tmp_path / "parts", BundleLimits(compressed=3))
    assert caught.value.reason == "TaskTooLarge"
    with pytest.raises(SourceError, match="is not part of a bundle"):
        await stored_bundles.spool_bundle(Cluster([{"metadata": {"name": "m"}, "binaryData": None}]).get, ["m"], tmp_path / "parts")
    (tmp_path / "parts").write_text("m !\n")
    with pytest.raises(SourceError, match="ConfigMap m is not part of a bundle"):
        await TaskReader(tmp_path).file("parts", tmp_path / "parts", "sha256:", verification=True, oracle=False)


async def test_the_inline_example_loads(tmp_path: Path) -> None:
    trial = parse_trial(yaml.safe_load((EXAMPLES / "inline-trial.yaml").read_text()))
    assert trial.spec.task.inline is not None
    task = await TaskReader(tmp_path).inline(trial.spec.task.inline, verification=True, oracle=True)
    assert list(task.layout.steps) == ["write", "extend"]
    bundle = inline_bundle(trial.spec.task.inline)
    assert bundle.entries["steps/write/tests/test.sh"].mode == 0o755
    assert bundle.entries["steps/write/instruction.md"].mode == 0o644


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"task.toml": ""}, "put its content into spec.task.inline.config"),
        ({"../a": ""}, "'../a' is refused"),
        ({"/a": ""}, "'/a' is refused"),
        ({"a": "", "a/b": ""}, "'a' is not a directory"),
        ({"a": "", "./a": ""}, "two paths are the same"),
        ({"a": "\ud800"}, "surrogates not allowed"),
    ],
)
def test_inline_files_are_checked(files: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        inline_bundle(InlineSource(config={}, files=files))
