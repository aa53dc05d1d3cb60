"""Test which checkpoint the next attempt resumes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.api.trial.status import AttemptStatus, CheckpointStatus, ResumeStatus, StepStatus, TrialStatus
from multistep.engine.journal.journal import AttemptLost
from multistep.engine.script.choose_checkpoint import CheckpointChoice, CheckpointId, blame_checkpoint, choose_checkpoint
from tests.support.played import THREE, plan
from tests.unit.engine.script_cases import FULL

IMAGE = "debian@sha256:1"
PLAN = plan(THREE)


@dataclass(frozen=True)
class On:
    """The checkpoint on which another one is based (choose_checkpoint.LayerBase)."""

    id: CheckpointId
    digest: str


@dataclass(frozen=True)
class Made:
    """A stored checkpoint (choose_checkpoint.Layer)."""

    digest: str
    base: On | None = None
    image_id: str = IMAGE
    processes: int = 0
    shared_memory: bool = False
    final: bool = False


LAYERS = {(1, 0): Made("d0"), (1, 1): Made("d1", base=On((1, 0), "d0"))}


def steps(*digests: str | None) -> list[StepStatus]:
    return [StepStatus(name="abc"[index], checkpoint=CheckpointStatus(digest=each)) for index, each in enumerate(digests)]


def resumed(*attempts: int, digest: str) -> ResumeStatus:
    return ResumeStatus(after="abc"[len(attempts) - 1], attempts=list(attempts), digest=digest)


def attempt(number: int, shown: Sequence[StepStatus], reason: str = "PodDeleted", **more: object) -> AttemptStatus:
    return AttemptStatus.model_validate({"number": number, "image_id": IMAGE, "reason": reason, "steps": shown, **more})


def after(*attempts: AttemptStatus) -> TrialStatus:
    return TrialStatus(attempts=list(attempts))


FIRST = attempt(1, steps("d0", "d1", None))


def test_the_attempts_last_checkpoint_is_chosen_with_all_its_layers() -> None:
    assert choose_checkpoint(after(FIRST), PLAN, LAYERS, {}) == CheckpointChoice(((1, 0), (1, 1)), ())


def test_a_checkpoint_that_the_status_does_not_name_yet_is_chosen() -> None:
    assert choose_checkpoint(after(attempt(1, steps("d0", None))), PLAN, LAYERS, {}).chain == ((1, 0), (1, 1))


def test_no_attempt_continues_after_the_step_that_ended_the_trial() -> None:
    layers = {**LAYERS, (1, 2): Made("d2", base=On((1, 1), "d1"), final=True)}
    assert choose_checkpoint(after(attempt(1, steps("d0", "d1", "d2"))), PLAN, layers, {}) == CheckpointChoice(((1, 0), (1, 1)), ())


def test_without_checkpoints_the_attempt_starts_at_step_1() -> None:
    assert choose_checkpoint(after(attempt(1, steps(None, None))), PLAN, {}, {}) == CheckpointChoice((), ())


def test_instead_of_a_damaged_or_missing_layer_the_checkpoint_before_is_chosen_and_the_reason_given() -> None:
    name = "the checkpoint after step 2 of attempt 1 is not used:"
    damaged = choose_checkpoint(after(FIRST), PLAN, {(1, 0): LAYERS[1, 0]}, {(1, 1): "its layer has 1 bytes instead of 2"})
    assert damaged == CheckpointChoice(((1, 0),), (f"{name} its layer has 1 bytes instead of 2",))
    missing = choose_checkpoint(after(FIRST), PLAN, {(1, 0): LAYERS[1, 0]}, {})
    assert missing == CheckpointChoice(((1, 0),), (f"{name} the layer of step 2 of attempt 1 is missing",))
    nothing = choose_checkpoint(after(FIRST), PLAN, {(1, 1): LAYERS[1, 1]}, {(1, 0): "its manifest is missing"})
    assert nothing.chain == () and all("its manifest is missing" in each for each in nothing.refused), nothing


def test_a_layer_that_is_not_the_one_in_the_status_or_below_the_next_one_is_refused() -> None:
    name = "the checkpoint after step 2 of attempt 1 is not used: the layer of step"
    changed = {**LAYERS, (1, 1): replace(LAYERS[1, 1], digest="other")}
    assert choose_checkpoint(after(FIRST), PLAN, changed, {}) == CheckpointChoice(
        ((1, 0),), (f"{name} 2 of attempt 1 was changed",)
    )
    below = {**LAYERS, (1, 0): replace(LAYERS[1, 0], digest="other")}
    found = choose_checkpoint(after(FIRST), PLAN, below, {})
    assert found.chain == () and found.refused[0] == f"{name} 1 of attempt 1 was changed"


def test_a_checkpoint_of_another_image_is_refused() -> None:
    layers = {**LAYERS, (1, 1): replace(LAYERS[1, 1], image_id="other")}
    found = choose_checkpoint(after(FIRST), PLAN, layers, {})
    assert found.chain == ((1, 0),)
    assert found.refused[0].endswith(f"it was made in the image other, and the attempt had {IMAGE}")


@pytest.mark.parametrize(
    ("made", "lost"),
    [
        (replace(LAYERS[1, 1], processes=3), "3 processes that the step left running"),
        (replace(LAYERS[1, 1], shared_memory=True), "files in /dev/shm"),
        (replace(LAYERS[1, 1], processes=1, shared_memory=True), "1 processes that the step left running and files in /dev/shm"),
    ],
)
def test_a_checkpoint_that_lacks_processes_is_used_only_with_a_resume_sh(made: Made, lost: str) -> None:
    layers = {**LAYERS, (1, 1): made}
    found = choose_checkpoint(after(FIRST), PLAN, layers, {})
    assert found.chain == ((1, 0),)
    assert f"a restore loses {lost}; a workdir/resume.sh of the step could start them again" in found.refused[0]
    for step, used in (("a", False), ("b", True), ("c", False)):
        with_script = plan(THREE, steps={step: replace(FULL, resume=True)})
        assert (choose_checkpoint(after(FIRST), with_script, layers, {}).chain == ((1, 0), (1, 1))) is used


def test_a_checkpoint_that_could_not_be_restored_is_not_tried_again_and_after_two_the_trial_starts_at_step_1() -> None:
    failed = attempt(2, steps("d0", "d1"), "RestoreFailed", resumed=resumed(1, 1, digest="d1"))
    found = choose_checkpoint(after(FIRST, failed), PLAN, LAYERS, {})
    assert found.chain == ((1, 0),) and found.refused[0].endswith("it could not be restored")
    again = attempt(3, steps("d0"), "RestoreFailed", resumed=resumed(1, digest="d0"))
    last = choose_checkpoint(after(FIRST, failed, again), PLAN, LAYERS, {})
    assert last == CheckpointChoice((), ("2 checkpoints could not be restored, so the next attempt starts at step 1",))


def test_a_checkpoint_is_tried_again_after_one_failed_setup_of_the_agent_and_blamed_for_the_second() -> None:
    lost, on_it = AttemptLost("AgentSetupFailed", "no network"), resumed(1, 1, digest="d1")
    assert blame_checkpoint(TrialStatus(attempts=[FIRST]), lost) == lost, "it continued from no checkpoint"
    assert blame_checkpoint(TrialStatus(attempts=[FIRST], resumed=on_it), lost) == lost
    once = attempt(2, steps("d0", "d1"), "AgentSetupFailed", resumed=on_it)
    assert choose_checkpoint(after(FIRST, once), PLAN, LAYERS, {}).chain == ((1, 0), (1, 1)), "from the same checkpoint"
    again = TrialStatus(attempts=[FIRST, once], resumed=on_it)
    assert blame_checkpoint(again, lost) == AttemptLost("RestoreFailed", "after the restore: no network")
    assert blame_checkpoint(again, AttemptLost("ProviderFailed", "x")) == AttemptLost("ProviderFailed", "x")
    other = attempt(2, steps("d0"), "AgentSetupFailed", resumed=resumed(1, digest="d0"))
    assert blame_checkpoint(TrialStatus(attempts=[FIRST, other], resumed=on_it), lost) == lost, "it failed on another checkpoint"


def test_only_checkpoints_of_the_last_attempt_and_of_the_steps_that_it_kept_are_used() -> None:
    layers = {**LAYERS, (2, 1): Made("own", base=On((1, 0), "d0"))}
    second = attempt(2, steps("d0", "own"), resumed=resumed(1, digest="d0"))
    assert choose_checkpoint(after(FIRST, second), PLAN, layers, {}).chain == ((1, 0), (2, 1))
    early = attempt(2, steps("d0", None), resumed=resumed(1, digest="d0"))
    assert choose_checkpoint(after(FIRST, early), PLAN, LAYERS, {}).chain == ((1, 0),), (
        "step b of attempt 1 is no part of its results"
    )
    fresh = attempt(2, steps(None))
    assert choose_checkpoint(after(FIRST, fresh), PLAN, LAYERS, {}).chain == ()


def test_a_kept_step_whose_changes_are_in_a_later_layer_has_none_of_its_own() -> None:
    layers = {(1, 1): Made("both")}
    second = attempt(2, [*steps(None, "both")], resumed=resumed(1, 1, digest="both"))
    assert choose_checkpoint(after(attempt(1, steps(None, "both")), second), PLAN, layers, {}) == CheckpointChoice(((1, 1),), ())


@given(
    stored=st.sets(st.tuples(st.integers(1, 3), st.integers(0, 2))),
    broken=st.sets(st.tuples(st.integers(1, 3), st.integers(0, 2))),
    kept=st.lists(st.integers(1, 2), max_size=2),
)
def test_a_choice_is_a_whole_chain_of_the_last_attempts_lineage(
    stored: set[CheckpointId], broken: set[CheckpointId], kept: list[int]
) -> None:
    def below(id: CheckpointId) -> On | None:
        lower = [(kept[step] if step < len(kept) else id[0], step) for step in range(id[1])]
        return next((On(each, str(each)) for each in reversed(lower) if each in stored), None)

    layers = {id: Made(str(id), base=below(id)) for id in stored - broken}
    before = ResumeStatus(after="a", attempts=kept, digest="d") if kept else None
    found = choose_checkpoint(
        after(attempt(3, steps(None, None, None), resumed=before)), PLAN, layers, dict.fromkeys(broken, "gone")
    )
    lineage = [(kept[step] if step < len(kept) else 3, step) for step in range(3)]
    assert set(found.chain) <= set(layers) & set(lineage)
    assert [each and each.id for each in (layers[id].base for id in found.chain)] == [None, *found.chain[:-1]][: len(found.chain)]


def test_after_an_exception_with_which_the_spec_starts_the_trial_again_no_step_is_kept() -> None:
    """A step that went well must not be kept while a failed one gets a second chance."""
    ended = after(attempt(1, steps("d0", "d1"), "RetriedBySpec"))
    chosen = choose_checkpoint(ended, PLAN, LAYERS, {})
    assert (chosen.chain, chosen.refused) == ((), ("the trial runs again, so the next attempt starts at step 1",))
    lost = after(attempt(1, steps("d0", "d1"), "RetriedBySpec"), attempt(2, steps("e0")))
    assert choose_checkpoint(lost, PLAN, {**LAYERS, (2, 0): Made("e0")}, {}).chain == ((2, 0),)
