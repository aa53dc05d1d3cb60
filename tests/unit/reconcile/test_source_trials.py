"""Test that a source trial's evidence is found on the volume and in the object store."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from multistep.errors import NotFound
from multistep.reconcile.trial.source_checkpoints import SourceTrials
from multistep.store.files.trial_key import TrialKey

KEY = TrialKey("default", "source", "u")
STEPS = [{"name": "a", "checkpoint": {"digest": {"sha256": "d"}}}]
STATEMENT = {
    "predicate": {
        "steps": STEPS,
        "outcome": "Complete",
        "task": {"digest": {"sha256": "t"}},
        "agent": {"name": "oracle", "version": None},
    }
}


@dataclass
class EvidenceStore:
    """A store of results that has only evidence."""

    statement: Any = None
    keys: list[TrialKey] = field(default_factory=lambda: [KEY])

    @property
    def results(self) -> EvidenceStore:
        return self

    async def part(self, key: TrialKey, path: str, *, offset: int, limit: int) -> bytes | None:
        assert (key, path, offset) == (KEY, "evidence.json", 0)
        return json.dumps(self.statement).encode() if self.statement else None

    async def trials(self, namespace: str, name: str) -> dict[TrialKey, float | None]:
        assert (namespace, name) == ("default", "source")
        return dict.fromkeys(self.keys)

    async def get(self, *_: object) -> Any:
        raise NotFound("gone", status=404, reason="NotFound")


@pytest.mark.parametrize(
    ("volume", "store"),
    [(EvidenceStore(STATEMENT), None), (EvidenceStore(STATEMENT), EvidenceStore()), (EvidenceStore(), EvidenceStore(STATEMENT))],
    ids=["on the volume", "on the volume, with a store", "in the object store"],
)
async def test_a_deleted_trial_is_found_by_its_evidence(volume: EvidenceStore, store: EvidenceStore | None) -> None:
    found = await SourceTrials(cast(Any, EvidenceStore()), cast(Any, volume), cast(Any, store)).find("default", "source")
    assert found is not None and found.finished and found.found is None
    assert (found.key, [(each.name, each.digest) for each in found.steps]) == (KEY, [("a", "d")])
    assert found.evidence is not None and (found.evidence.task.digest, found.evidence.agent.version) == ({"sha256": "t"}, "unknown")


@pytest.mark.parametrize(
    "volume", [EvidenceStore(), EvidenceStore(STATEMENT, []), EvidenceStore(STATEMENT, [KEY, TrialKey("default", "source", "v")])],
    ids=["no evidence", "no results", "results of two trials"],
)  # fmt: skip
async def test_a_trial_that_cannot_be_told_is_not_found(volume: EvidenceStore) -> None:
    assert await SourceTrials(cast(Any, EvidenceStore()), cast(Any, volume)).find("default", "source") is None
