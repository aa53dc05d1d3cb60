"""Labels and annotations that identify an object's trial or sweep. Labels are cut to 63 characters, annotations are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from multistep.api.common.base_model import GROUP

MANAGED: Final[Mapping[str, str]] = {"app.kubernetes.io/managed-by": "multistep"}  # on every object that the operator creates
MANAGED_SELECTOR: Final = ",".join(f"{name}={value}" for name, value in MANAGED.items())
TRIAL: Final = f"{GROUP}/trial"
TASK: Final = f"{GROUP}/task"
AGENT: Final = f"{GROUP}/agent"
# On a pod: the attempt of its trial. On a sweep's trial: the number of this trial among those with the same task and agent, from 1.
ATTEMPT: Final = f"{GROUP}/attempt"
SWEEP: Final = f"{GROUP}/sweep"
NUMBER: Final = f"{GROUP}/number"  # on a trial: its number in the sweep, from 0
RETRY_OF: Final = f"{GROUP}/retry-of"  # on a retry of a sweep's trial: number of the retried trial
SHARD: Final = f"{GROUP}/shard"  # on a trial or a sweep: the shard whose operator reconciles the object
# On a reference trial, which runs a task's solutions for trials with spec.fromStep: the digest in the reference trial's name.
REFERENCE: Final = f"{GROUP}/reference"
SUSPENDED_BY: Final = f"{GROUP}/suspended-by"  # on a trial that its sweep suspended and will resume: name of the sweep
BRANCH: Final = f"{GROUP}/branch"  # on a sweep's trial of a single step (branch): its start state: Start, Own or Reference
SUBMISSION: Final = f"{GROUP}/submission"  # on a trial or a sweep that the CLI created: a random value for the create request
RENEWAL: Final = f"{GROUP}/renewal"  # on a sweep with spec.lease: any value; a new value renews the lease
STEP: Final = f"{GROUP}/step"  # on a sweep's trial of a single step (branch): name of the step
