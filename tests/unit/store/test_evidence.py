"""Evidence of results: every change of fetched results is found and named, and no content of the files makes the check crash."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.errors import StoreError, UsageError
from multistep.store.evidence import file_list
from multistep.store.evidence import verify_results as checking
from multistep.store.evidence.fetched_results import trial_directories
from multistep.store.evidence.file_list import ListedItem
from multistep.store.evidence.signing import InvalidEnvelope, PublicKey, Signer, parse_envelope
from multistep.store.evidence.verify_results import check_evidence
from multistep.store.results_volume import ResultsVolume
from tests.harbor.samples import FIRST, finish
from tests.support.hostile import spoilt, spoilt_bytes
from tests.support.signing_keys import write_keys

from .evidence_cases import BY_NAME, EVIDENCE, SAMPLE, Signed, copy_of, fetched, problems

NAMES = st.one_of(
    st.text(st.characters(blacklist_characters="/\0"), min_size=1, max_size=30),
    st.binary(min_size=1, max_size=60).map(os.fsdecode).filter(lambda name: "/" not in name and "\0" not in name),
    st.sampled_from(["x" * 255, "\x01" * 255, "evidence.json", "ü", "-rf", "sha256:0", "result.json"]),
).filter(lambda name: name not in (".", "..") and not any("\ud800" <= c < "\udc80" for c in name) and len(os.fsencode(name)) <= 255)


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Signed:
    return Signed(tmp_path_factory.mktemp("evidence"))


@pytest.mark.parametrize("name", BY_NAME)
def test_fetched_results_are_as_their_evidence_says(signed: Signed, name: str) -> None:
    checked = check_evidence(signed.results[name], PublicKey.load(signed.public))
    assert checked.ok and checked.signature == "valid", checked.findings
    files = [each for each in signed.results[name].rglob("*") if each.is_file() and each.name not in EVIDENCE]
    assert (checked.digests.files, checked.digests.bytes) == (len(files), sum(each.stat().st_size for each in files))


# -- changes are found


def flipped(top: Path, path: str, draw: st.DataObject) -> set[str]:
    file = top / path
    data = bytearray(file.read_bytes())
    at = draw.draw(st.integers(0, len(data) - 1))
    data[at] ^= draw.draw(st.integers(1, 255))
    file.write_bytes(data)
    return {path}


def cut(top: Path, path: str, draw: st.DataObject) -> set[str]:
    file = top / path
    file.write_bytes(file.read_bytes()[: draw.draw(st.integers(0, file.stat().st_size - 1))])
    return {path}


def deleted(top: Path, path: str, draw: st.DataObject) -> set[str]:
    (top / path).unlink()
    return {path}


def moved(top: Path, path: str, draw: st.DataObject) -> set[str]:
    (top / path).rename(top / "moved")
    return {path, "moved"}


def swapped(top: Path, path: str, draw: st.DataObject) -> set[str]:
    """Move the file out of the results, and replace it with a link to it."""
    (top / path).rename(top.parent / "outside")
    (top / path).symlink_to(top.parent / "outside")
    return {path}


def added(top: Path, path: str, draw: st.DataObject) -> set[str]:
    name = draw.draw(NAMES.filter(lambda name: name not in EVIDENCE))
    new = (top / path).parent / name
    if os.path.lexists(new):
        return cut(top, path, draw)
    kind = draw.draw(st.sampled_from(["file", "directory", "link", "fifo"]))
    if kind == "file":
        new.write_bytes(b"")
    elif kind == "directory":
        new.mkdir()
    elif kind == "link":
        new.symlink_to("/etc/passwd")
    else:
        os.mkfifo(new)
    return {str(new.relative_to(top))}


@given(st.data(), st.sampled_from([flipped, cut, deleted, moved, swapped, added]), st.sampled_from(sorted(BY_NAME)))
def test_every_change_of_a_file_is_found_and_names_it(
    signed: Signed, draw: st.DataObject, change: Callable[[Path, str, st.DataObject], set[str]], name: str
) -> None:
    with copy_of(signed.results[name]) as top:
        files = sorted(str(each.relative_to(top)) for each in top.rglob("*") if each.is_file() and each.stat().st_size)
        expected = change(top, draw.draw(st.sampled_from([each for each in files if each not in EVIDENCE])), draw)
        found = {each.file for each in check_evidence(top, PublicKey.load(signed.public)).findings}
        assert expected <= found and found <= expected | {"result.json", "lock.json"}


@given(st.data(), st.sampled_from(EVIDENCE), st.sampled_from([flipped, cut, deleted, swapped]))
def test_every_change_of_signed_evidence_is_found(
    signed: Signed, draw: st.DataObject, file: str, change: Callable[[Path, str, st.DataObject], set[str]]
) -> None:
    with copy_of(signed.results["rewards"]) as top:
        before = (top / file).read_bytes()
        change(top, file, draw)
        same = change is flipped and file == "evidence.dsse.json" and same_envelope(before, (top / file).read_bytes())
        assert check_evidence(top, PublicKey.load(signed.public)).ok is same


def same_envelope(one: bytes, other: bytes) -> bool:
    """Return whether two envelopes have the same content. An envelope's formatting, such as white space, is not signed, and several
    base64 texts have the same content."""
    try:
        return bool(parse_envelope(one) == parse_envelope(other))
    except InvalidEnvelope:
        return False


def test_a_moved_file_is_named_with_its_new_place(signed: Signed) -> None:
    with copy_of(signed.results["rewards"]) as top:
        (top / "trial.log").rename(top / "steps/log")
        found = problems(check_evidence(top))
    assert found == {
        "steps/log": "was added: the evidence does not list it",
        "trial.log": "is missing: it was moved to steps/log",
    }


def test_another_trials_evidence_is_refused(signed: Signed) -> None:
    with copy_of(signed.results["rewards"]) as top:
        for name in EVIDENCE:
            shutil.copy(signed.results["exceptions"] / name, top / name)
        found = check_evidence(top, PublicKey.load(signed.public))
    assert found.signature == "valid" and not found.ok
    texts = [each.problem for each in found.findings if each.file == "result.json"]
    assert any(each.startswith("the trial's UID is") for each in texts), texts


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("the trial's rewards", lambda predicate: predicate.update(rewards={"reward": 1.0})),
        ("the reward of step", lambda predicate: predicate["steps"][0].update(rewards={"reward": 0})),
        ("the task's digest", lambda predicate: predicate["task"].update(digest={"sha256": "00"})),
        ("the image's ID", lambda predicate: predicate["environment"].update(imageID="other")),
        ("the agent's version", lambda predicate: predicate["agent"].update(version="2")),
        ("the verifiers' images", lambda predicate: predicate["steps"][0].update(verifierImageID="other")),
        ("the list of steps", lambda predicate: predicate["steps"].pop()),
        (
            "the digest of all its files differs",
            lambda predicate: predicate["steps"][0]["artifacts"].update(digest={"sha256": "0"}),
        ),
    ],
)
def test_a_statement_that_contradicts_the_results_is_refused(
    signed: Signed, what: str, change: Callable[[dict[str, Any]], object]
) -> None:
    with copy_of(signed.results["rewards"]) as top:
        (top / "evidence.dsse.json").unlink()
        found = json.loads((top / "evidence.json").read_text())
        change(found["predicate"])
        (top / "evidence.json").write_text(json.dumps(found))
        assert any(what in each.problem for each in check_evidence(top).findings)


def test_the_statement_names_the_digest_of_the_result(signed: Signed) -> None:
    with copy_of(signed.results["rewards"]) as top:
        (top / "evidence.dsse.json").unlink()
        stated = json.loads((top / "evidence.json").read_text())
        stated["subject"][0]["digest"]["sha256"] = "0" * 64
        (top / "evidence.json").write_text(json.dumps(stated))
        found = problems(check_evidence(top))
    assert found == {"result.json": "is not the one that evidence.json names: its SHA-256 differs"}


# -- signatures


def test_a_signature_is_needed_if_a_key_is_given(signed: Signed) -> None:
    with copy_of(signed.results["rewards"]) as top:
        assert check_evidence(top).signature == "not checked" and check_evidence(top).ok
        other = check_evidence(top, PublicKey.load(signed.other))
        (top / "evidence.dsse.json").unlink()
        without = check_evidence(top, PublicKey.load(signed.public))
        unsigned = check_evidence(top)
    assert other.signature == "invalid" and "is not signed by the key" in problems(other)["evidence.dsse.json"]
    assert without.signature == "none"
    assert problems(without) == {"evidence.dsse.json": "is missing: the evidence is not signed"}
    assert unsigned.ok and unsigned.signature == "none"


def test_the_signature_of_another_statement_is_refused_also_without_a_key(signed: Signed) -> None:
    with copy_of(signed.results["rewards"]) as top:
        (top / "evidence.dsse.json").write_bytes(signed.signer.envelope(b"{}"))
        for key in (None, PublicKey.load(signed.public)):
            assert problems(check_evidence(top, key)) == {"evidence.dsse.json": "signs another statement than evidence.json"}


def test_keys_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    _, public = write_keys(tmp_path)
    for path in (public, tmp_path / "none"):
        with pytest.raises(StoreError, match="openssl genpkey"):
            Signer.load(path)
    for path in (tmp_path / "signing-key.pem", tmp_path / "none"):
        with pytest.raises(UsageError, match="not a public key"):
            PublicKey.load(path)


# -- hostile names and large files


@given(st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=4), st.binary(max_size=50)), max_size=8))
def test_whatever_names_an_agent_chose_its_results_are_as_their_evidence_says(files: list[tuple[list[str], bytes]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        volume = ResultsVolume(Path(directory, "v"))
        top = volume.root / str(SAMPLE.key) / f"steps/{FIRST}/artifacts"
        top.mkdir(parents=True)
        for names, data in files:
            try:
                place = top.joinpath(*names)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data) if len(data) % 3 else place.symlink_to(os.fsdecode(data.replace(b"\0", b"") or b"x"))
            except OSError:
                continue  # a file of this name exists
        path = asyncio.run(finish(volume, SAMPLE))
        volume.close()
        assert all(len(line) <= file_list.MAX_LINE_BYTES for line in (path / "evidence.files.jsonl").read_bytes().splitlines())
        checked = check_evidence(fetched(path, Path(directory, "out")))
        assert checked.ok, checked.findings


def test_a_line_has_few_bytes_however_long_its_path_is() -> None:
    item = ListedItem(path="\x01" * 2000, kind="link", target="\udcff" * 4000)
    assert set(item.fields()) == {"pathSha256", "kind", "targetSha256"}
    assert len(item.line()) < 300


# -- hostile evidence


@given(st.data())
def test_spoilt_evidence_is_refused_and_breaks_nothing(signed: Signed, draw: st.DataObject) -> None:
    with copy_of(signed.results["hosted"]) as top:
        (top / "evidence.dsse.json").unlink()
        name = draw.draw(st.sampled_from(["evidence.json", "evidence.files.jsonl", "result.json", "lock.json"]))
        good = (top / name).read_bytes()
        if name.endswith(".jsonl") or draw.draw(st.booleans()):
            bad = draw.draw(spoilt_bytes(good))
        else:
            bad = json.dumps(draw.draw(spoilt(json.loads(good)))).encode()
        (top / name).write_bytes(bad)
        checked = check_evidence(top)
        assert bad == good or name == "evidence.json" or not checked.ok
        assert all(len(each.problem) < 2000 for each in checked.findings)


@pytest.mark.parametrize("name", ["evidence.json", "evidence.files.jsonl", "evidence.dsse.json", "result.json"])
@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"predicate":' * 50_000, b"", b"x" * 100_000, b'{"path": 3}\n', b"9" * 5000])
def test_a_hostile_file_is_a_finding(signed: Signed, name: str, text: bytes) -> None:
    with copy_of(signed.results["rewards"]) as top:
        (top / name).write_bytes(text)
        assert not check_evidence(top, PublicKey.load(signed.public)).ok


@pytest.mark.parametrize("name", ["evidence.json", "evidence.files.jsonl", "evidence.dsse.json"])
def test_links_and_pipes_in_place_of_evidence_are_not_followed(signed: Signed, name: str) -> None:
    for make in (lambda path: path.symlink_to(signed.results["rewards"] / name), os.mkfifo, Path.mkdir):
        with copy_of(signed.results["rewards"]) as top:
            (top / name).unlink()
            make(top / name)
            assert name in problems(check_evidence(top, PublicKey.load(signed.public)))


def test_a_sparse_file_is_not_read_and_a_deep_tree_is_left(signed: Signed) -> None:
    with copy_of(signed.results["rewards"]) as top:
        with (top / "trial.log").open("r+b") as file:
            file.truncate(1 << 40)
        assert "bytes instead of" in problems(check_evidence(top))["trial.log"]
    with copy_of(signed.results["rewards"]) as top:
        (top / "/".join(["d"] * 400)).mkdir(parents=True)
        assert "is too deep" in problems(check_evidence(top)).values()


def test_the_number_of_files_and_of_findings_is_bounded(signed: Signed, monkeypatch: pytest.MonkeyPatch) -> None:
    with copy_of(signed.results["rewards"]) as top:
        for number in range(1200):
            (top / f"more-{number}").touch()
        checked = check_evidence(top)
        assert (len(checked.findings), checked.more) == (1000, 200)
        monkeypatch.setattr(checking, "MAX_FILES", 20)
        assert "lists a path twice, or more than 20 paths" in problems(check_evidence(top)).values()


def test_a_path_that_is_listed_twice_is_refused(signed: Signed) -> None:
    with copy_of(signed.results["rewards"]) as top:
        with (top / "evidence.files.jsonl").open("ab") as file:
            file.write(b'{"path": "trial.log", "kind": "file"}\n')
        assert "lists a path twice" in problems(check_evidence(top))["evidence.files.jsonl"]


def test_results_without_evidence_are_no_error_but_refused(signed: Signed) -> None:
    with copy_of(signed.results["rewards"]) as top:
        for name in EVIDENCE:
            (top / name).unlink()
        assert problems(check_evidence(top)) == {
            "evidence.json": "is missing: it was deleted, or an operator without evidence wrote the results"
        }


# -- directories of several trials


def test_trials_are_found_below_a_directory_and_not_in_each_other(signed: Signed, tmp_path: Path) -> None:
    for name in ("a/b/c", "d"):
        shutil.copytree(signed.results["rewards"], tmp_path / name)
    shutil.copytree(signed.results["rewards"], tmp_path / "d/attempts/1")
    (tmp_path / "e").mkdir()
    (tmp_path / "link").symlink_to(signed.results["rewards"])
    (tmp_path / "/".join(["x"] * 20)).mkdir(parents=True)
    assert trial_directories(tmp_path) == [tmp_path / "a/b/c", tmp_path / "d"]
    assert trial_directories(tmp_path / "d") == [tmp_path / "d"] and trial_directories(tmp_path / "e") == []


@pytest.mark.parametrize("result", ["{", "[]", "{}"])
def test_a_directory_is_a_job_only_if_its_result_says_so(tmp_path: Path, result: str) -> None:
    (tmp_path / "result.json").write_text(result)
    assert trial_directories(tmp_path) == [tmp_path]
