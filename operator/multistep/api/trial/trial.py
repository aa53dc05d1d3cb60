"""The MultiStepTrial resource. The CRD is generated from these models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multistep.api.common.base_model import API_VERSION, Metadata, Model, parsed
from multistep.api.trial.conditions import is_finished
from multistep.api.trial.pod_template_rules import refuse_pod_templates
from multistep.api.trial.spec import TrialSpec
from multistep.api.trial.status import TrialStatus

KIND = "MultiStepTrial"
PLURAL = "multisteptrials"


class MultiStepTrial(Model):
    """One run of a multi-step task by one agent."""

    api_version: str = API_VERSION
    kind: str = KIND
    metadata: Metadata = Metadata()
    spec: TrialSpec
    """Desired trial."""
    status: TrialStatus = TrialStatus()
    """Observed state."""


def parse_trial(obj: Mapping[str, Any]) -> MultiStepTrial:
    """Parse the resource. Raises InvalidSpec with one line per problem, each starting with the field's path."""
    found = parsed(MultiStepTrial, obj)
    if found.status.attempt is None and not is_finished(found.status):
        refuse_pod_templates([("spec.environment.podTemplate", found.spec.environment.pod_template)])
    return found


def parse_status(obj: Mapping[str, Any]) -> TrialStatus:
    """Parse only the status, which is possible even if the spec is invalid."""
    return parsed(TrialStatus, obj.get("status") or {}, under="status.")
