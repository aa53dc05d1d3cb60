"""Test that the fakes of the results volume and the object store have the calls of the classes that they stand for.

The operator's type annotations name these classes, not protocols, so mypy does not compare the fakes with them.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from multistep.store.bucket.upload_results import DirectUploads, ResultsUploader
from multistep.store.checkpoints.checkpoint_store import CheckpointDraft, Checkpoints
from multistep.store.evidence.writer import EvidenceWriter
from multistep.store.files.thread_pool import Spool
from multistep.store.results_volume import BuildLogs, ResultsVolume
from multistep.store.trial.access_tokens import AccessTokens
from multistep.store.trial.collect_files import Collections
from tests.support.builds import FakeBuildLogs
from tests.support.fake_volume import FakeCheckpoints, FakeDraft, FakeEvidence, FakeResultsStore, FakeSpool, FakeVolume

REAL: dict[type, list[type]] = {
    FakeVolume: [ResultsVolume, Collections, AccessTokens, DirectUploads, ResultsUploader],
    FakeResultsStore: [ResultsVolume],
    FakeCheckpoints: [Checkpoints],
    FakeDraft: [CheckpointDraft],
    FakeEvidence: [EvidenceWriter],
    FakeBuildLogs: [BuildLogs],
    FakeSpool: [Spool],
}


def calls(fake: type) -> list[str]:
    return [name for name, each in vars(fake).items() if inspect.isfunction(each) and not name.startswith("_")]


def parameters(call: Any) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(call).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


@pytest.mark.parametrize(("fake", "name"), [(fake, name) for fake in REAL for name in calls(fake)])
def test_a_call_of_a_fake_has_the_parameters_of_the_real_one(fake: type, name: str) -> None:
    real = [getattr(each, name) for each in REAL[fake] if hasattr(each, name)]
    assert real, f"no class that {fake.__name__} stands for has {name}"
    assert parameters(getattr(fake, name)) in [parameters(each) for each in real]
