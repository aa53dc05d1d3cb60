"""Labels and annotations that identify an object's trial or sweep. Labels are truncated to their limit, annotations are not."""

from __future__ import annotations

from typing import Final

from multistep.api.model import GROUP

TRIAL: Final = f"{GROUP}/trial"
TASK: Final = f"{GROUP}/task"
AGENT: Final = f"{GROUP}/agent"
ATTEMPT: Final = f"{GROUP}/attempt"  # of a pod: the trial's; of a sweep's trial: of its task and agent in that sweep
SWEEP: Final = f"{GROUP}/sweep"
NUMBER: Final = f"{GROUP}/number"  # of a trial in its sweep, from 0
SHARD: Final = f"{GROUP}/shard"  # of a trial or a sweep: the shard whose operator reconciles it
SUSPENDED_BY: Final = f"{GROUP}/suspended-by"  # on a trial that its sweep suspended, and will resume
