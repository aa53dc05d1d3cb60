"""The identity of the trial that results belong to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from multistep.api.trial.trial import MultiStepTrial
from multistep.errors import StoreError

_OBJECT_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}")
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")


@dataclass(frozen=True)
class TrialKey:
    """Namespace, name and uid of a trial. Raises StoreError if a part is not valid for a Kubernetes object."""

    namespace: str
    name: str
    uid: str

    def __post_init__(self) -> None:
        if not (_OBJECT_NAME.fullmatch(self.namespace) and _OBJECT_NAME.fullmatch(self.name) and _UID.fullmatch(self.uid)):
            raise StoreError(f"{self.namespace!r}/{self.name!r}/{self.uid!r} is not a valid NAMESPACE/NAME/UID of an object")

    @classmethod
    def of(cls, trial: MultiStepTrial) -> Self:
        """Return a trial's key."""
        return cls(trial.metadata.namespace, trial.metadata.name, trial.metadata.uid)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}/{self.uid}"
