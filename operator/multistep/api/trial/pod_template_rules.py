"""Rules for spec.environment.podTemplate, applied by operator, command line and client to trials and sweeps that have not started.

Those that an earlier release started go on with the template that they have.

The API server drops unknown fields of a pod without a word, so a misspelt field would have no effect. Names of the operator's own
containers are reserved: under them, a template could get the privileges that policies grant to the operator's containers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from multistep.errors import InvalidSpec

MAIN: Final = "main"
AGENT_HOST: Final = "agent-host"
RESERVED: Final = frozenset({"egress", "install-runner", "copy-agent"})
RESERVED_PREFIX: Final = "svc-"
_TOP: Final = frozenset({"metadata", "spec"})
_NAMES: Final = frozenset({"name", "generateName", "namespace"})  # without effect, as in any PodTemplateSpec
_METADATA: Final = frozenset({"labels", "annotations", "finalizers", "creationTimestamp", *_NAMES})
_POD_FIELDS: Final = """
    activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy enableServiceLinks hostAliases
    hostIPC hostNetwork hostPID hostUsers hostname hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os
    overhead preemptionPolicy priority priorityClassName readinessGates resourceClaims resources restartPolicy runtimeClassName
    schedulerName schedulingGates schedulingGroup securityContext serviceAccount serviceAccountName setHostnameAsFQDN
    shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes workloadRef
"""
_CONTAINER_FIELDS: Final = """
    args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resizePolicy resources
    restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce terminationMessagePath
    terminationMessagePolicy tty volumeDevices volumeMounts workingDir
"""
_POD: Final = frozenset(_POD_FIELDS.split())
_CONTAINER: Final = frozenset(_CONTAINER_FIELDS.split())
_COMMAND: Final = ("command", "args")


def refuse_pod_templates(templates: Iterable[tuple[str, Mapping[str, Any] | None]]) -> None:
    """Raise InvalidSpec, with a line for each template, for unknown fields, reserved names of containers and commands of the
    operator's containers. templates: each with its field."""
    wrong = [f"{field}: {problem}" for field, template in templates if template and (problem := next(_problems(template), ""))]
    if wrong:
        raise InvalidSpec("\n".join(wrong))


def _problems(template: Mapping[str, Any]) -> Iterator[str]:
    yield from _unknown("", template, _TOP)
    yield from _unknown("metadata", template.get("metadata"), _METADATA)
    spec = template.get("spec")
    yield from _unknown("spec", spec, _POD)
    for field in ("containers", "initContainers"):
        yield from _of_containers(field, (spec or {}).get(field))


def _of_containers(field: str, found: Any) -> Iterator[str]:
    where = f"spec.{field}"
    if found is not None and not isinstance(found, list):
        yield f"{where}: must be a list"
    for index, each in enumerate(found if isinstance(found, list) else []):
        name = each.get("name") if isinstance(each, Mapping) else None
        if not isinstance(name, str) or not name:
            yield f"{where}[{index}].name: must be the container's name"
            return
        place = f"{where}[{name}]"
        yield from _unknown(place, each, _CONTAINER)
        own = (MAIN, AGENT_HOST)
        if name in RESERVED or name.startswith(RESERVED_PREFIX) or (field == "initContainers" and name in own):
            yield f"{place}: the name is reserved for the operator's own container; choose another"
        if name in own and (given := next((each_field for each_field in _COMMAND if each.get(each_field)), "")):
            yield f"{place}.{given}: must not be set; the container runs Multistep's runner, which starts the task's commands"


def _unknown(where: str, found: Any, known: frozenset[str]) -> Iterator[str]:
    if found is not None and not isinstance(found, Mapping):
        yield f"{where}: must be an object"
        return
    for name in sorted(set(found or {}) - known, key=str):
        near = get_close_matches(str(name), known, n=1)
        place = f"{where}.{name}".lstrip(".")
        yield f"{place}: unknown field" + (f"; did you mean {near[0]}?" if near else "")
