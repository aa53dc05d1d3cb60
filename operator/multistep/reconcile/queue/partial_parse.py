"""Parses the valid fields of a trial with an invalid spec or status, so that it can still be failed and cleaned up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.kube.cluster_protocols import Object


def salvaged(trial: Object) -> MultiStepTrial:
    """Return the trial with those fields of spec and status that can be parsed separately, and with an empty task."""
    spec = {**_readable(lambda spec: _parsed({}, spec=spec), trial.get("spec")), "task": _NO_TASK}
    return _parsed(trial, spec=spec, status=_readable(lambda found: _parsed({}, status=found), trial.get("status")))


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
