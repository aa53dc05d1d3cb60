"""Tests of outcomes: their size limit, and how they are written."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from multistep_host.outcome import MAX_BYTES, error_of, host_error, outcome, write

JSON = st.recursive(st.none() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(st.text(), st.integers(1, 5_000), st.dictionaries(st.text(), JSON))
def test_an_outcome_fits_whatever_an_agent_reports(text: str, times: int, metadata: dict[str, object]) -> None:
    long = text * times
    agent = {"name": long, "version": long, "model": {"name": long, "provider": long}}
    made = outcome(error=error_of(RuntimeError(long)), agent=agent, metadata={**metadata, "long": long})
    assert len(json.dumps(made)) <= MAX_BYTES


def test_small_metadata_is_kept_and_what_is_no_json_is_left_out() -> None:
    assert outcome(metadata={"turns": 2})["metadata"] == {"turns": 2}
    assert outcome(metadata={"object": object()})["metadata"] is None


def test_a_long_message_keeps_its_end() -> None:
    assert host_error("a" * 5000 + "the reason")["message"].endswith("the reason")


def test_an_outcome_is_written_as_a_whole(tmp_path: Path) -> None:
    write(tmp_path / "outcome.json", outcome())
    assert [path.name for path in tmp_path.iterdir()] == ["outcome.json"]
    assert json.loads((tmp_path / "outcome.json").read_text())["ok"]
