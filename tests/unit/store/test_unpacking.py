"""Unpacking a step's download: where files are stored, what is rejected, and that no path leads out of the trial's directory."""

from __future__ import annotations

import json
import os
import stat
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multistep.api.task.task_toml import ArtifactConfig
from multistep.errors import RunnerError, StoreError
from multistep.store.files.file_trees import MAX_DEPTH
from multistep.store.results_volume import ResultsVolume
from multistep.store.trial.unpack_download import MAX_NOTES
from multistep.store.trial.unpack_download import unpack as keep_now

from .helpers import KEY, Step, directory, entries, keep, link, member, opened, snapshot, tar, trial_path

TWO = ("directory", "directory")


def log(volume: ResultsVolume) -> str:
    path = trial_path(volume) / "trial.log"
    return path.read_text() if path.exists() else ""


async def test_logs_and_artifacts_come_to_their_places(volume: ResultsVolume) -> None:
    data = tar(
        directory("0"), member("0/oracle.txt", b"did it"), directory("1"), member("1/reward.txt", b"1"),
        directory("2"), member("2/report/x.json", b"{}"), member("3", b"#!/bin/sh", mode=0o755),
    )  # fmt: skip
    step = Step(artifacts=entries("/logs/artifacts", "/app/greet.sh", "/app/missing"))
    collected = await keep(volume, data, (*TWO, "directory", "file", "missing"), step)
    found = snapshot(trial_path(volume) / "steps/one")
    assert found["agent/oracle.txt"] == ("file", 0o644, b"did it")
    assert found["verifier/reward.txt"][2] == b"1"
    assert found["artifacts/report/x.json"][2] == b"{}"
    assert found["artifacts/greet.sh"] == ("file", 0o755, b"#!/bin/sh")
    assert (collected.types, collected.count, collected.bytes) == (("directory", "file", "missing"), 2, 11)
    assert [(line["destination"], line["status"]) for line in json.loads(found["artifacts/manifest.json"][2])] == [
        ("artifacts", "ok"), ("artifacts/greet.sh", "ok"), ("artifacts/missing", "failed"),
    ]  # fmt: skip
    assert log(volume) == ""


async def test_a_single_step_task_has_its_files_at_the_trials_root(volume: ResultsVolume) -> None:
    await keep(volume, tar(member("0/a", b"x"), directory("1")), step=Step(name="task", directory=None))
    assert {"agent/a", "verifier", "artifacts/manifest.json"} <= set(snapshot(trial_path(volume)))


async def test_missing_logs_are_empty_directories(volume: ResultsVolume) -> None:
    await keep(volume, tar(), ("missing", "missing"))
    assert set(snapshot(trial_path(volume) / "steps/one")) == {"agent", "verifier", "artifacts", "artifacts/manifest.json"}


@pytest.mark.parametrize("name", ["with space $HOME", "-rf", ".hidden", "ünïcode-步骤", "a" * 255, "attempts"])
async def test_step_names_may_be_anything_that_is_one_directory_name(volume: ResultsVolume, name: str) -> None:
    await keep(volume, tar(member("0/a", b"x")), step=Step(name, name))
    assert (trial_path(volume) / "steps" / name / "agent/a").read_text() == "x"


async def test_a_repeated_collection_gives_the_same_and_replaces_the_older(volume: ResultsVolume) -> None:
    step = Step(artifacts=entries("/logs/artifacts"))
    types = (*TWO, "directory")
    await keep(volume, tar(member("0/old", b"x"), directory("2"), member("2/old", b"x")), types, step)
    data = tar(member("0/new", b"y"), directory("2"), member("2/new", b"y"), member("2/../x", b"!"))
    first = await keep(volume, data, types, step)
    once = snapshot(trial_path(volume))
    assert await keep(volume, data, types, step) == first
    assert snapshot(trial_path(volume)) == once
    assert "steps/one/agent/old" not in once
    assert log(volume).count("left out '2/../x'") == 1


async def test_what_a_broken_collection_left_does_no_harm(volume: ResultsVolume) -> None:
    await keep(volume, tar(member("0/a", b"whole")))
    before = snapshot(trial_path(volume))
    with pytest.raises(RunnerError, match="cut short"):
        await keep(volume, tar(member("0/b", bytes(5000)))[:3000])
    assert snapshot(trial_path(volume)) == before


async def test_an_artifact_called_manifest_json_is_not_taken_for_ours(volume: ResultsVolume) -> None:
    step = Step(artifacts=entries("/logs/artifacts", "/app/manifest.json"))
    data = tar(directory("2"), member("2/manifest.json", b"theirs"), member("3", b"app's"))
    collected = await keep(volume, data, (*TWO, "directory", "file"), step)
    artifacts = trial_path(volume) / "steps/one/artifacts"
    assert (artifacts / "logs/artifacts/manifest.json").read_bytes() == b"theirs"
    assert (artifacts / "app/manifest.json").read_bytes() == b"app's"
    assert [line["destination"] for line in json.loads((artifacts / "manifest.json").read_text())] == [
        "artifacts/logs/artifacts",
        "artifacts/app/manifest.json",
    ]
    assert collected.count == 2


async def test_a_file_in_place_of_logs_artifacts_is_kept(volume: ResultsVolume) -> None:
    await keep(volume, tar(member("2", b"odd")), (*TWO, "file"), Step(artifacts=entries("/logs/artifacts")))
    assert (trial_path(volume) / "steps/one/artifacts/artifacts").read_bytes() == b"odd"


async def test_one_source_listed_twice_is_one_place_and_counts_once(volume: ResultsVolume) -> None:
    step = Step(artifacts=entries("/app/a", "/app/a"))
    collected = await keep(volume, tar(member("2", b"xx"), member("3", b"xx")), (*TWO, "file", "file"), step)
    assert (collected.count, collected.bytes) == (1, 2)


async def test_links_are_kept_and_never_followed(volume: ResultsVolume, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    data = tar(
        link("0/etc", str(outside)), member("0/etc/passwd", b"mine"),
        link("0/file", str(outside / "new")), member("0/file", b"mine"),
        link("0/dangling", "../../nowhere"), link("0/loop", "loop"), member("0/loop/x", b"mine"),
    )  # fmt: skip
    await keep(volume, data)
    found = snapshot(trial_path(volume) / "steps/one/agent")
    assert list(outside.iterdir()) == []
    assert found["etc/passwd"][0] == found["file"][0] == found["loop/x"][0] == "file"  # the later member replaces the link
    assert found["dangling"] == ("link", 0, b"../../nowhere")


async def test_the_later_of_two_with_one_name_wins(volume: ResultsVolume) -> None:
    data = tar(
        member("0/a", b"1"), member("0/a", b"2"), member("0/d/x", b"1"), member("0/d", b"file"),
        member("0/e", b"file"), member("0/e/x", b"2"), directory("0/f"), link("0/f", "a"),
    )  # fmt: skip
    await keep(volume, data)
    found = snapshot(trial_path(volume) / "steps/one/agent")
    assert {name: each[2] for name, each in found.items()} == {"a": b"2", "d": b"file", "e": b"", "e/x": b"2", "f": b"a"}


async def test_special_bits_are_lost_and_the_owner_can_always_read_and_delete(volume: ResultsVolume) -> None:
    data = tar(
        member("0/setuid", b"x", mode=0o6755), member("0/secret", b"x", mode=0), member("0/run", b"x", mode=0o011),
        directory("0/closed", mode=0o1000), member("0/closed/in", b"x", mode=0o444),
    )  # fmt: skip
    await keep(volume, data)
    found = snapshot(trial_path(volume) / "steps/one/agent")
    assert {name: oct(each[1]) for name, each in found.items()} == {
        "setuid": "0o755", "secret": "0o600", "run": "0o711", "closed": "0o700", "closed/in": "0o644",
    }  # fmt: skip


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
async def test_devices_fifos_and_hard_links_are_left_out_and_named(volume: ResultsVolume, kind: bytes) -> None:
    await keep(volume, tar(member("0/odd", kind=kind, target="/etc/passwd"), member("0/a", b"x")))
    assert set(snapshot(trial_path(volume) / "steps/one/agent")) == {"a"}
    assert "step one: /logs/agent: left out '0/odd': neither a file" in log(volume)


@pytest.mark.parametrize(
    "name",
    ["0/" + "n" * 256, "0/" + "/".join(["d" * 200] * 11), "0/" + "/".join("d" * (MAX_DEPTH + 1)), "0/../x", "0/a/../../b",
     "7/x", "x", "../x", "/etc/x", "-1/x", "²/x", "0" * 9 + "/x"],
)  # fmt: skip
async def test_names_that_cannot_be_are_left_out_and_named(volume: ResultsVolume, name: str) -> None:
    await keep(volume, tar(member(name, b"x"), member("0/good", b"x")))
    assert set(snapshot(trial_path(volume) / "steps/one/agent")) == {"good"}
    assert "left out" in log(volume)


async def test_names_that_are_not_utf_8_are_kept(volume: ResultsVolume) -> None:
    await keep(volume, tar(member("0/" + os.fsdecode(b"caf\xe9"), b"x")))
    assert set(snapshot(trial_path(volume) / "steps/one/agent")) == {os.fsdecode(b"caf\xe9")}


@pytest.mark.parametrize(
    ("kind", "sent"),
    [("file", directory("2")), ("file", member("2/x", b"")), ("directory", link("2", "/etc")), ("missing", member("2", b"x"))],
)
async def test_a_runner_that_contradicts_itself_gets_nothing_kept(volume: ResultsVolume, kind: str, sent: bytes) -> None:
    collected = await keep(volume, tar(sent), (*TWO, kind), Step(artifacts=entries("/app/out")))
    assert collected.count == 0
    assert "the runner reported" in log(volume)


async def test_a_download_that_is_no_tar_is_the_runners_error_and_not_the_volumes(volume: ResultsVolume) -> None:
    with pytest.raises(RunnerError, match="the tar stream of collected files is invalid"):
        await keep(volume, b"x" * 512)


async def test_types_must_be_of_all_sources(volume: ResultsVolume) -> None:
    with pytest.raises(StoreError, match="types of 2 sources, not of 3"):
        await keep(volume, tar(), TWO, Step(artifacts=entries("/app/out")))


@pytest.mark.parametrize("path", [".", "./", "./.", "/", "//", "/etc", "a/..", "..", ""])
async def test_no_path_can_keep_the_search_for_a_place_going(volume: ResultsVolume, path: str) -> None:
    step = Step(artifacts=entries("/logs/artifacts", "/app/out"))
    await keep(volume, tar(directory("2"), member(f"2/{path}", b"x"), member("3", b"y")), (*TWO, "directory", "file"), step)
    assert (trial_path(volume) / "steps/one/artifacts/out").read_bytes() == b"y"


async def test_the_log_of_what_was_left_out_is_bounded(volume: ResultsVolume) -> None:
    await keep(volume, tar(*(member(f"9/{number}") for number in range(MAX_NOTES + 7))))
    assert len(log(volume).splitlines()) == MAX_NOTES + 1
    assert "left out 7 more files" in log(volume)


PARTS = st.sampled_from(["a", "b", "..", ".", "", "manifest.json", "artifacts", "logs", "n" * 300, "\udce9"])
PATHS = st.tuples(st.sampled_from(["0", "1", "2", "3", "4", "9", "", ".."]), st.lists(PARTS, max_size=4)).map(
    lambda each: "/".join([each[0], *each[1]])
)
TARGETS = st.sampled_from(["a", "..", "../..", "../../../../../canary", "/", "b/a", "."])
MEMBERS = st.lists(
    st.builds(
        member,
        PATHS.filter(bool),
        st.binary(max_size=20),
        st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]),
        st.integers(0, 0o7777),
        TARGETS,
    ),
    max_size=25,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(MEMBERS, st.lists(st.sampled_from(["file", "directory", "missing", "other"]), min_size=3, max_size=3))
def test_no_tar_whatever_writes_outside_or_what_could_not_be_deleted(sent: list[bytes], kinds: list[str]) -> None:
    artifacts = (*entries("/logs/artifacts", "/app/a"), ArtifactConfig(source="/b", destination="a/b"))
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as file:
        top = Path(scratch)
        (top / "canary").write_text("alive")
        target = top / "results/work"
        target.mkdir(parents=True)
        file.write(tar(*sent))
        file.flush()
        kept = keep_now(file.fileno(), target, artifacts, [*TWO, *kinds])
        found = snapshot(top)
        outside = {name for name in found if not name.startswith("results/work/")}
        assert outside == {"canary", "results", "results/work"}
        assert found["canary"][2] == b"alive"
        assert {name.split("/")[2] for name in found if name.count("/") >= 2} == {"agent", "verifier", "artifacts"}
        assert all(each[1] & 0o7000 == 0 and (each[0] == "link" or each[1] & 0o600 == 0o600) for each in found.values())
        lines = json.loads(found["results/work/artifacts/manifest.json"][2])
        assert [line["source"] for line in lines] == [each.source for each in artifacts]
        files = [each for name, each in found.items() if name.startswith("results/work/artifacts/") and each[0] == "file"]
        assert kept.collected.count == len(files) - 1


async def test_the_archive_of_hostile_results_has_them_as_they_are(volume: ResultsVolume) -> None:
    data = tar(link("0/etc", "/etc"), directory("0/d", mode=0o711), member("0/d/" + os.fsdecode(b"\xff"), b"x"))
    await keep(volume, data)
    found = opened(b"".join([chunk async for chunk in volume.archive(KEY)]))
    assert found["steps/one/agent/etc"].linkname == "/etc"
    assert not any(name.startswith("steps/one/agent/etc/") for name in found)
    assert stat.S_IMODE(found["steps/one/agent/d"].mode) == 0o711
    assert "steps/one/agent/d/" + os.fsdecode(b"\xff") in found
