"""Token records become training samples: each sampled token is trained once, with its exact context, and with its step's credit."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence, Sized

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.client.rollouts.merge_records import samples_of_records
from multistep.client.rollouts.sample import Samples
from multistep.token_records.record import BLOCK_BYTES, Record, State, StepRecords, StoredPrompt


def request(
    order: int,
    prompt: Sequence[int],
    ids: Sequence[int],
    *,
    state: State = "Done",
    context: str = "main",
    versions: Sequence[tuple[int, str]] = (),
    logprobs: Sequence[float] | None = None,
) -> Record:
    """Return the record of a request; the log-probability of token 10 is -1, unless given."""
    raw = array("I", prompt).tobytes()
    return Record(
        id=f"r{order}",
        answer="",
        order=order,
        began=1.0,
        ended=2.0,
        step="",
        choice=0,
        context=context,
        stored_prompt=StoredPrompt([raw[:BLOCK_BYTES]], raw[BLOCK_BYTES:]),
        ids=array("I", ids),
        logprobs=array("f", [-each / 10 for each in ids] if logprobs is None else logprobs),
        finish="stop",
        state=state,
        seen=len(ids),
        versions=list(versions),
    )


def steps(**records: Sequence[Record]) -> dict[str, StepRecords]:
    return {name: StepRecords({}, found, "") for name, found in records.items()}


def samples(records: Sequence[Record]) -> Samples:
    return samples_of_records(steps(one=records), {"one": 1.0}, 1.0)


SEVEN, EIGHT = [(0, "7")], [(0, "8")]
EXAMPLE = steps(
    one=[
        request(1, [1, 2, 3], [10, 11], versions=SEVEN),
        request(2, [1, 2, 3, 10, 11, 4], [12], versions=SEVEN),
        request(3, [50, 51], [13], context="helper", versions=SEVEN),
        request(4, [50, 51, 13, 52], [14], context="helper", versions=SEVEN),
    ],
    two=[
        request(1, [1, 2, 3, 10, 11, 4, 12, 5], [15, 16], versions=[(0, "7"), (1, "8")]),
        request(2, [1, 2, 60], [17], versions=EIGHT),  # a compaction
        request(3, [1, 2, 60, 18, 61], [19], versions=EIGHT),  # the text of token 17 came back as token 18
        request(4, [1, 2, 60], [20], versions=EIGHT),
        request(5, [1, 2, 60, 20, 62], [21], state="Aborted"),
    ],
)
PARTS = {"one": 0.25, "two": 0.5}


def test_the_session_of_two_steps_becomes_sequences_with_masks_versions_and_credit() -> None:
    found = samples_of_records(EXAMPLE, PARTS, 0.75)
    main, helper, compacted, changed, again = found.sequences
    assert [each.why for each in found.sequences] == ["First", "OtherAgent", "HistoryChanged", "AnswerChanged", "SamePrompt"]
    assert list(main.ids) == [1, 2, 3, 10, 11, 4, 12, 5, 15, 16]
    assert list(main.mask) == [0, 0, 0, 1, 1, 0, 1, 0, 1, 1]
    assert [found.steps[each] for each in main.steps] == ["one"] * 7 + ["two"] * 3
    assert [found.versions[each] if each >= 0 else "" for each in main.versions] == ["", "", "", "7", "7", "", "7", "", "7", "8"]
    assert main.credit is not None and list(main.credit) == [0, 0, 0, 0.75, 0.75, 0, 0.75, 0, 0.5, 0.5]
    assert list(main.logprobs) == list(array("f", [0, 0, 0, -1.0, -1.1, 0, -1.2, 0, -1.5, -1.6]))
    assert main.answers == [(3, 5, "one/r1/0"), (6, 7, "one/r2/0"), (8, 10, "two/r1/0")]
    assert (list(helper.ids), list(helper.mask)) == ([50, 51, 13, 52, 14], [0, 0, 1, 0, 1])
    assert (compacted.shared, list(compacted.mask)) == (2, [0, 0, 0, 1])
    assert (changed.shared, list(changed.mask)) == (3, [0, 0, 0, 0, 0, 1])
    assert list(again.ids) == [1, 2, 60, 20]
    assert found.left_out == {"two/r5/0": "Aborted"} and found.reward == 0.75 and found.valid
    assert found.staleness(9) == pytest.approx((6 * 2 + 4 * 1) / 10)


@pytest.mark.parametrize(("credit", "first", "second"), [("ToGo", 0.75, 0.5), ("Step", 0.25, 0.5), ("Trial", 0.75, 0.75)])
def test_the_credit_of_a_token_is_that_of_its_step(credit: str, first: float, second: float) -> None:
    main = samples_of_records(EXAMPLE, PARTS, 0.75, credit).sequences[0]  # type: ignore[arg-type]
    assert main.credit is not None and (main.credit[3], main.credit[8]) == (first, second)


def test_a_rollout_that_is_not_valid_has_sequences_without_credit_and_no_reward() -> None:
    found = samples_of_records(EXAMPLE, PARTS, None)
    assert found.reward is None and not found.valid
    assert len(found.sequences) == 5 and all(each.credit is None for each in found.sequences)


def test_records_that_are_not_exact_are_left_out_and_later_requests_keep_them_as_context() -> None:
    found = samples(
        [
            request(1, [1], [2], logprobs=[]),
            request(2, [1], [3], logprobs=[float("nan")]),
            request(3, [1], [4], state="Mixed"),
            request(4, [1, 4, 5], [6]),
        ]
    )
    assert found.left_out == {"one/r1/0": "Inexact", "one/r2/0": "Inexact", "one/r3/0": "Mixed"}
    assert [(list(each.ids), list(each.mask)) for each in found.sequences] == [([1, 4, 5, 6], [0, 0, 0, 1])]


def test_an_answer_that_the_agent_left_is_trained_on_request_as_far_as_the_agent_received_it() -> None:
    left = [request(number, [1], [10, 11, 12], state="Aborted").model_copy(update={"seen": number}) for number in (2, 0)]
    records = steps(one=[*left, request(3, [1, 10, 11, 5], [13])])
    assert samples(records["one"].records).left_out == {"one/r2/0": "Aborted", "one/r0/0": "Aborted"}
    found = samples_of_records(records, {"one": 1.0}, 1.0, aborted=True)
    assert found.left_out == {"one/r0/0": "Aborted"}
    assert [(list(each.ids), list(each.mask)) for each in found.sequences] == [([1, 10, 11, 5, 13], [0, 1, 1, 0, 1])]


def test_a_step_whose_records_are_incomplete_is_named() -> None:
    records = {"one": StepRecords({}, [request(1, [1], [2])], "the file has no end"), **steps(two=[])}
    found = samples_of_records(records, {}, 0.5)
    assert found.missing == {"one": "the file has no end"} and found.reward == 0.5


def test_tokens_of_unknown_versions_have_no_staleness() -> None:
    assert samples([request(1, [1], [2])]).staleness(3) is None
    assert samples([request(1, [1], [2, 3], versions=[(1, "2"), (9, "3")])]).staleness(3) == 1.0
    assert samples([]).staleness(3) is None


@st.composite
def conversations(draw: st.DrawFn) -> list[Record]:
    """Return requests of agents that continue, repeat, change or drop what they sent before; few ids, so that prompts meet."""
    token = st.lists(st.integers(0, 3), max_size=4)
    histories: list[list[int]] = [[]]
    found = []
    for order in range(draw(st.integers(0, 12))):
        history = draw(st.sampled_from(histories))
        kept = draw(st.one_of(st.just(len(history)), st.integers(0, len(history))))
        prompt, ids = history[:kept] + draw(token), draw(token)
        versions = draw(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("789")), max_size=3))
        found.append(request(order, prompt, ids, context=draw(st.sampled_from("ab")), versions=versions))
        histories.append(prompt + ids)
    return found


@given(conversations())
def test_each_answer_is_trained_once_after_exactly_its_prompt(records: list[Record]) -> None:
    found = samples(records)
    by_request = {f"one/{each.id}/0": each for each in records}
    trained: list[str] = []
    for sample in found.sequences:
        mask = [0] * len(sample.ids)
        for start, end, name in sample.answers:
            record = by_request[name]
            assert (sample.ids[:start], sample.ids[start:end]) == (record.prompt, record.ids)
            assert sample.logprobs[start:end] == record.logprobs
            mask[start:end] = [1] * (end - start)
            trained.append(name)
        assert list(sample.mask) == mask
        arrays: list[Sized] = [sample.ids, sample.logprobs, sample.steps, sample.versions, sample.credit or []]
        lengths = set(map(len, arrays))
        assert lengths == {len(mask)}
        assert [each >= 0 for each in sample.versions] == [each == 1 for each in mask]
    assert sorted(trained) == sorted(by_request) and not found.left_out


@given(conversations())
def test_a_request_continues_the_longest_sequence_with_which_its_prompt_starts(records: list[Record]) -> None:
    sequences: list[list[int]] = []
    for count, record in enumerate(records):
        prompt = list(record.prompt)
        lengths = [len(each) for each in sequences if prompt[: len(each)] == each]
        found = [list(each.ids) for each in samples(records[: count + 1]).sequences]
        assert len(found) == len(sequences) + (not lengths)
        gone = [each for each in sequences if each not in found] or [[]]
        assert len(gone[0]) in ([max(lengths)] if lengths and record.ids else [*lengths, 0])
        sequences = found


@given(conversations())
def test_a_sequence_says_how_much_it_shares_with_an_earlier_one(records: list[Record]) -> None:
    earlier: list[Sequence[int]] = []
    for sample in samples(records).sequences:
        prompt = sample.ids[: sample.answers[0].start]
        best = max((_shared(each, prompt) for each in earlier), default=0)
        assert sample.shared <= best and (sample.why == "First") == (not earlier)
        earlier.append(sample.ids)


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((number for number, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right)))


def test_many_agents_in_turns_stay_one_sequence_each() -> None:
    histories: Mapping[int, list[int]] = {agent: [0, agent] for agent in range(1, 40)}
    records: list[Record] = []
    for turn in range(10):
        for agent, history in histories.items():
            records.append(request(len(records), history, [100 + turn], context=str(agent)))
            history += [100 + turn, agent]
    assert [len(each.answers) for each in samples(records).sequences] == [10] * 39
