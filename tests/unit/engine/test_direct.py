"""Test which large file the pod uploads to the object store next. The choice depends only on the runner's records."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.api.trial.runner_records import Record
from multistep.engine.journal.operations import Collect, Source
from multistep.engine.journal.results_limits import LargeFile, Send, SentFile, Survey, UploadProgress, upload_progress
from multistep.errors import RunnerError

COLLECT = Collect("1/a/collect", 0, (Source("/logs/agent"), Source("/app/out")))
FILES = [LargeFile(1, "deep/big", 3000), LargeFile(0, "", 2000, binary=False)]
SENT = {"size": 3000, "sha256": "ab", "version": "v", "error": None}


def record(id: str, result: dict[str, Any] | None) -> Record:
    state = "running" if result is None else "done"
    return Record(id=f"1/a/collect-{id}", op="send", state=state, started_at=1.0, ended_at=None, acknowledged=True, result=result)


def after(*records: Record) -> UploadProgress:
    return upload_progress(COLLECT, {each.id: each for each in records})


SURVEYED = record("survey", {"files": [each.to_json() for each in FILES]})


def test_first_it_is_found_out_what_is_large() -> None:
    assert after() == UploadProgress(Survey("1/a/collect-survey"))
    assert after(record("survey", {"files": []})) == UploadProgress()


def test_files_are_sent_one_after_another() -> None:
    first, second = Send("1/a/collect-send-0", 0, FILES[0]), Send("1/a/collect-send-1", 1, FILES[1])
    assert after(SURVEYED) == UploadProgress(first)
    running = record("send-0", None)
    assert after(SURVEYED, running) == UploadProgress(first, running)
    sent = (SentFile(0, FILES[0], "ab", "v"),)
    assert after(SURVEYED, record("send-0", SENT)) == UploadProgress(second, sent=sent)
    done = after(SURVEYED, record("send-0", SENT), record("send-1", SENT))
    assert done == UploadProgress(sent=(*sent, SentFile(1, FILES[1], "ab", "v")))
    assert [each.file.member for each in done.sent] == ["1/deep/big", "0"]
    assert second.seconds > 120


def test_when_one_cannot_be_sent_no_further_one_is_tried() -> None:
    fault = {**SENT, "error": {"code": "Send", "message": "no route to host"}}
    assert after(SURVEYED, record("send-0", fault)) == UploadProgress(failure="1/deep/big: no route to host")


@pytest.mark.parametrize("change", [{"source": 2}, {"source": -1}, {"size": -1}, {"size": "x"}, {"path": 3}, {"binary": None}])
def test_nonsense_is_an_error_of_the_runners(change: dict[str, object]) -> None:
    with pytest.raises(RunnerError):
        LargeFile.from_json({**FILES[0].to_json(), **change}, 2)
