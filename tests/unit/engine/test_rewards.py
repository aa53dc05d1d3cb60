from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.engine.journal.journal import Number
from multistep.engine.score.rewards import (
    RewardError,
    Rewards,
    gate_failure,
    parse_reward_files,
    parse_reward_json,
    parse_reward_txt,
    trial_rewards,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = FINITE | st.integers(-(10**30), 10**30)
REWARDS = st.dictionaries(st.text(max_size=5), NUMBERS, max_size=4)

TXT: dict[bytes, float | str] = {
    b"1": 1.0,
    b"0.25\n": 0.25,
    b" \t-3.5e2 \r\n": -350.0,
    b"+1": 1.0,
    b"1_000.5": 1000.5,
    b".5": 0.5,
    b"1e-400": 0.0,
    "٣".encode(): 3.0,  # Unicode digits are accepted, as by float()
    b"": "RewardFileEmptyError",
    b" ": "VerifierOutputParseError",
    b"\n": "VerifierOutputParseError",
    b"nan": "VerifierOutputParseError",
    b"inf": "VerifierOutputParseError",
    b"-Infinity": "VerifierOutputParseError",
    b"1e999": "VerifierOutputParseError",
    b"1,5": "VerifierOutputParseError",
    b"0x10": "VerifierOutputParseError",
    b"true": "VerifierOutputParseError",
    b"1 2": "VerifierOutputParseError",
    b"\xef\xbb\xbf1": "VerifierOutputParseError",
    b"\xff": "VerifierOutputParseError",
    b"\x00": "VerifierOutputParseError",
}

JSON: dict[bytes, Mapping[str, Number] | str] = {
    b"{}": {},
    b'{"reward": 1}': {"reward": 1},
    b' {"a": 0.5, "b": -2} \n': {"a": 0.5, "b": -2},
    b'{"a": true, "b": false}': {"a": 1.0, "b": 0.0},
    b'{"a": 1, "a": 2}': {"a": 2},
    b'{"a": 123456789012345678901234567890}': {"a": 123456789012345678901234567890},
    '{"Grüße 🎉": 1}'.encode(): {"Grüße 🎉": 1},
    b'{"": 1}': {"": 1},
    b"": "RewardFileEmptyError",
    b" ": "VerifierOutputParseError",
    b"{": "VerifierOutputParseError",
    b"[1]": "VerifierOutputParseError",
    b"[]": "VerifierOutputParseError",
    b'"1"': "VerifierOutputParseError",
    b"null": "VerifierOutputParseError",
    b"NaN": "VerifierOutputParseError",
    b"-Infinity": "VerifierOutputParseError",
    b"1e999": "VerifierOutputParseError",
    b"1": "ValidationError",
    b"1.5": "ValidationError",
    b"true": "ValidationError",
    b'{"a": "1"}': "VerifierOutputParseError",
    b'{"a": null}': "VerifierOutputParseError",
    b'{"a": [1]}': "VerifierOutputParseError",
    b'{"a": {}}': "VerifierOutputParseError",
    b'{"a": NaN}': "VerifierOutputParseError",
    b'{"a": Infinity}': "VerifierOutputParseError",
    b'{"a": 1e999}': "VerifierOutputParseError",
    b'{"a": 1, "b": "x"}': "VerifierOutputParseError",
    b"\xef\xbb\xbf{}": "VerifierOutputParseError",
    b"\xff{}": "VerifierOutputParseError",
    b"[" * 100_000: "VerifierOutputParseError",
    b'{"a": ' * 900 + b"1" + b"}" * 900: "VerifierOutputParseError",
    b'{"a": ' + b"9" * 5000 + b"}": "VerifierOutputParseError",  # Python parses integers of at most 4300 digits
}


def reported(parse: object, *files: bytes | None) -> object:
    """Return the result of a parser of reward files, or the type of its RewardError."""
    try:
        return parse(*files)  # type: ignore[operator]
    except RewardError as error:
        assert str(error)
        return error.type


@pytest.mark.parametrize("data", TXT, ids=repr)
def test_reward_txt_is_read_as_python_reads_a_float(data: bytes) -> None:
    wanted = TXT[data]
    assert reported(parse_reward_txt, data) == (wanted if isinstance(wanted, str) else {"reward": wanted})


@pytest.mark.parametrize("data", JSON, ids=lambda data: repr(data[:40]))
def test_reward_json_is_an_object_of_finite_numbers(data: bytes) -> None:
    assert reported(parse_reward_json, data) == JSON[data]


def test_booleans_become_floats_and_integers_stay_integers() -> None:
    kinds = {key: type(value) for key, value in parse_reward_json(b'{"t": true, "i": 1, "f": 1.0}').items()}
    assert kinds == {"t": float, "i": int, "f": float}


@pytest.mark.parametrize(
    ("json_file", "txt_file", "wanted"),
    [
        (b'{"reward": 0.5}', b"1", {"reward": 0.5}),
        (b"broken", b"1", "VerifierOutputParseError"),
        (b"", b"1", "RewardFileEmptyError"),
        (b"{}", b"1", {}),
        (None, b"1", {"reward": 1.0}),
        (None, b"", "RewardFileEmptyError"),
        (None, None, "RewardFileNotFoundError"),
    ],
)
def test_reward_json_takes_precedence_over_reward_txt_however_broken(
    json_file: bytes | None, txt_file: bytes | None, wanted: object
) -> None:
    assert reported(parse_reward_files, json_file, txt_file) == wanted


@given(REWARDS)
def test_what_a_verifier_writes_as_json_is_read_exactly(rewards: dict[str, Number]) -> None:
    assert parse_reward_json(json.dumps(rewards).encode()) == rewards


@given(FINITE)
def test_any_finite_number_is_a_reward(value: float) -> None:
    assert parse_reward_txt(repr(value).encode()) == {"reward": value}


@given(st.none() | st.binary(max_size=200), st.none() | st.binary(max_size=200) | st.text(max_size=20).map(str.encode))
def test_any_bytes_are_finite_numbers_or_a_named_error(json_file: bytes | None, txt_file: bytes | None) -> None:
    try:
        rewards = parse_reward_files(json_file, txt_file)
    except RewardError as error:
        assert error.type and str(error)
    else:
        assert all(math.isfinite(value) for value in rewards.values())


@pytest.mark.parametrize(
    ("minimum", "rewards", "failing"),
    [
        (None, None, None),
        (None, {}, None),
        (1.0, {"reward": 1.0}, None),
        (1.0, {"reward": 1}, None),
        (1.0, {"reward": 0.999}, "reward is 0.999, below min_reward 1"),
        (0.0, {"reward": 0.0}, None),
        (0.0, {"other": 1.0}, "reward is missing, below min_reward 0"),
        (0.0, {}, "reward is missing, below min_reward 0"),
        (0.0, None, "reward is missing, below min_reward 0"),
        (-1.0, {"reward": -0.5}, None),
        (-1.0, {"reward": -2}, "reward is -2, below min_reward -1"),
        (-math.inf, None, None),
        (math.nan, None, None),
        (math.inf, {"reward": 1e308}, "reward is 1e+308, below min_reward inf"),
        ({}, None, None),
        ({"a": 0.8, "b": 0.5}, {"a": 0.8, "b": 0.5, "c": -9.0}, None),
        ({"a": 0.8, "b": 0.5}, {"a": 0.9, "b": 0.4}, "b is 0.4, below min_reward 0.5"),
        ({"a": 0.8, "b": 0.5}, {"b": 0.5}, "a is missing, below min_reward 0.8"),
        ({"a": -math.inf}, None, None),
        (1.0, {"reward": 10**400}, None),
        (1.0, {"reward": -(10**400)}, "reward is less than -1e308, below min_reward 1"),
    ],
)
def test_a_gate_fails_strictly_below_its_threshold(
    minimum: float | Mapping[str, float] | None, rewards: Rewards | None, failing: str | None
) -> None:
    assert gate_failure(minimum, rewards) == failing


@given(st.floats(), st.none() | REWARDS)
def test_a_scalar_gate_is_a_table_with_the_key_reward(minimum: float, rewards: Rewards | None) -> None:
    assert gate_failure(minimum, rewards) == gate_failure({"reward": minimum}, rewards)


@given(st.dictionaries(st.sampled_from("ab"), st.floats()), st.dictionaries(st.sampled_from("abc"), NUMBERS))
def test_a_table_fails_if_any_of_its_keys_does(minimum: dict[str, float], rewards: dict[str, Number]) -> None:
    fails = any(rewards.get(key, -math.inf) < threshold for key, threshold in minimum.items())
    assert (gate_failure(minimum, rewards) is not None) == fails


@pytest.mark.parametrize(
    ("steps", "mean", "final"),
    [
        ([], None, None),
        ([None], None, None),
        ([{}], None, {}),
        ([{}, None], None, None),
        ([{"reward": 1}], {"reward": 1.0}, {"reward": 1}),
        ([{"reward": 1}, {"reward": 0}], {"reward": 0.5}, {"reward": 0}),
        ([{"reward": 1}, None], {"reward": 1.0}, None),
        ([{"reward": 1}, {}], {"reward": 0.5}, {}),
        ([{"a": 1}, {"b": 0.5}], {"a": 0.5, "b": 0.25}, {"b": 0.5}),
        ([None, {"a": 1, "b": 0.5}, {"a": 0}], {"a": 0.5, "b": 0.25}, {"a": 0}),
    ],
)
def test_trial_rewards(steps: Sequence[Rewards | None], mean: Rewards | None, final: Rewards | None) -> None:
    assert trial_rewards("mean", steps) == mean
    assert trial_rewards(None, steps) == mean
    assert trial_rewards("final", steps) == final


@pytest.mark.parametrize(
    "steps",
    [[{"r": 10**400}], [{"r": 10**400}, {"r": 0.5}], [{"r": 1.7e308}, {"r": 1.7e308}]],
    ids=["huge integer", "huge integer and float", "huge floats"],
)
def test_a_mean_that_is_no_finite_number_overflows(steps: Sequence[Rewards]) -> None:
    with pytest.raises(OverflowError):
        trial_rewards("mean", steps)


def test_final_is_verbatim_even_for_a_huge_integer() -> None:
    assert trial_rewards("final", [{"r": 10**400}]) == {"r": 10**400}


@given(st.lists(st.none() | st.dictionaries(st.sampled_from("abc"), st.integers(-100, 100)), max_size=6))
def test_the_mean_divides_by_the_steps_with_a_result(steps: list[dict[str, int] | None]) -> None:
    results = [each for each in steps if each is not None]
    means = trial_rewards("mean", steps)
    for key, value in (means or {}).items():
        assert value * len(results) == pytest.approx(sum(each.get(key, 0) for each in results))
    assert set(means or {}) == {key for each in results for key in each}
