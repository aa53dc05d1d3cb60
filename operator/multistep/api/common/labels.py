"""Labels and annotations that identify an object's trial or sweep. Values of labels are cut to 63 characters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from multistep.api.common.base_model import GROUP

MANAGED: Final[Mapping[str, str]] = {"app.kubernetes.io/managed-by": "multistep"}  # label of all objects that the operator creates
MANAGED_SELECTOR: Final = ",".join(f"{name}={value}" for name, value in MANAGED.items())
TRIAL: Final = f"{GROUP}/trial"
TASK: Final = f"{GROUP}/task"
AGENT: Final = f"{GROUP}/agent"
# On a pod, the number of its trial's attempt. On a sweep's trial, its number among the trials of the same task and agent, from 1.
ATTEMPT: Final = f"{GROUP}/attempt"
SWEEP: Final = f"{GROUP}/sweep"
NUMBER: Final = f"{GROUP}/number"  # a trial's number in its sweep, from 0
RETRY_OF: Final = f"{GROUP}/retry-of"  # the number of the trial that a retry repeats
SHARD: Final = f"{GROUP}/shard"  # the shard whose operator reconciles a trial or sweep
# The digest in the name of a reference trial, which runs a task's solutions for trials with spec.fromStep.
REFERENCE: Final = f"{GROUP}/reference"
SUSPENDED_BY: Final = f"{GROUP}/suspended-by"  # the sweep that suspended a trial and will resume it
BRANCH: Final = f"{GROUP}/branch"  # the state from which a branch (a sweep's trial of one step) starts: Start, Own or Reference
SUBMISSION: Final = f"{GROUP}/submission"  # a random value that identifies the CLI's request to create a trial or sweep
RENEWAL: Final = f"{GROUP}/renewal"  # any text; a new value renews the lease of a sweep with spec.lease
STEP: Final = f"{GROUP}/step"  # the step of a branch
