"""The model of MultiStepTrial. The CRD is generated from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from multistep.api.common.base_model import API_VERSION, Metadata, Model, parsed
from multistep.api.trial.spec import TrialSpec, refuse_pod_templates
from multistep.api.trial.status import TrialStatus, is_finished
from multistep.api.trial.status_journal import joined

KIND = "MultiStepTrial"
PLURAL = "multisteptrials"


class MultiStepTrial(Model):
    """One run of a multi-step task by one agent."""

    api_version: str = API_VERSION
    kind: str = KIND
    metadata: Metadata = Metadata()
    spec: TrialSpec
    """Desired state of the trial."""
    status: TrialStatus = TrialStatus()
    """Observed state of the trial."""


def parse_trial(obj: Mapping[str, Any]) -> MultiStepTrial:
    """Parse a MultiStepTrial. Raises InvalidSpec with one line per problem, each starting with the field's path."""
    found = parsed(MultiStepTrial, obj)
    if found.status.attempt is None and not is_finished(found.status):
        refuse_pod_templates([("spec.environment.podTemplate", found.spec.environment.pod_template)])
    return found


def parse_status(obj: Mapping[str, Any]) -> TrialStatus:
    """Parse only the status of a MultiStepTrial, which is possible even if the spec is invalid. Raises InvalidSpec."""
    return parsed(TrialStatus, obj.get("status") or {}, under="status.")


def salvaged(trial: Object) -> MultiStepTrial:
    """Return an invalid trial with those fields of spec and status that can be parsed, and with an empty task."""
    spec = {**_readable(lambda spec: _parsed({}, spec=spec), trial.get("spec")), "task": _NO_TASK}
    status = trial.get("status")
    with suppress(Exception):
        status = joined(TrialStatus, status or {})
    return _parsed(trial, spec=spec, status=_readable(lambda found: _parsed({}, status=found), status))


Object = dict[str, Any]
_NO_TASK: Object = {"inline": {"config": {}}}


def _parsed(trial: Object, **parts: Object) -> MultiStepTrial:
    spec = {"task": _NO_TASK, **parts.get("spec", {})}
    return parse_trial({**trial, "status": {}, **parts, "spec": spec})


def _readable(parse: Callable[[Object], object], fields: object) -> Object:
    found: Object = {}
    for name, value in fields.items() if isinstance(fields, Mapping) else ():
        with suppress(Exception):
            parse({name: value})
            found[name] = value
    return found
