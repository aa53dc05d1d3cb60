"""The operator's permissions: granted by the chart, documented in docs/reference/security.md, and used according to audit logs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from localkube import startups

ROOT = Path(__file__).parents[2]
NAMESPACE, RELEASE = "multistep-system", "multistep"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
ALL_FEATURES = ("trials.egress=NetworkPolicy", "drain=Wait")

Object = dict[str, Any]


class Right(NamedTuple):
    """A verb on a resource. group: its API group, empty for the core; resource: with its subresource, such as ``pods/exec``."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


class Request(NamedTuple):
    """A request to an API server, and whether RBAC allowed it."""

    right: Right
    allowed: bool
    shown: str


def granted(program: str, values: Iterable[str] = ALL_FEATURES) -> set[Right]:
    """Return the rights that the chart grants to the operator's account. program: path of Helm; values: arguments of --set."""
    settings = [word for value in values for word in ("--set", value)]
    command = [program, "template", RELEASE, str(ROOT / "charts" / "multistep"), "--namespace", NAMESPACE, *settings]
    command += ["--set", "crds.install=false"]  # a CRD grants nothing, and these are nine tenths of the output
    rendered = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return _rights_of_account([each for each in yaml.load_all(rendered, yaml.CSafeLoader) if each])


def _rights_of_account(objects: Iterable[Object]) -> set[Right]:
    objects = list(objects)
    bindings = [each for each in objects if each["kind"] in ("RoleBinding", "ClusterRoleBinding")]
    mine = {"kind": "ServiceAccount", "name": RELEASE, "namespace": NAMESPACE}
    roles = {(each["roleRef"]["kind"], each["roleRef"]["name"]) for each in bindings if mine in each["subjects"]}
    return set().union(*(of_rules(each["rules"]) for each in objects if (each["kind"], each["metadata"]["name"]) in roles))


def of_rules(rules: Iterable[Mapping[str, list[str]]]) -> set[Right]:
    """Return the rights that a role's rules grant."""
    return {
        Right(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def documented(page: str) -> list[Right]:
    """Return the rights in a page's tables: rows with a resource (``pods``, ``leases.coordination.k8s.io``) and a verb."""
    rows = (line.strip("|").split("|") for line in page.splitlines() if line.startswith("| `"))
    words = [[cell.strip().strip("`") for cell in row] for row in rows]
    return [_right(row[0], row[1]) for row in words if row[1] in _VERBS]


_VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")


def _right(resource: str, verb: str) -> Right:
    name, _, group = resource.partition(".")
    plain, _, subresource = group.partition("/")
    return Right(plain, f"{name}/{subresource}" if subresource else name, verb)


def requested(logs: Iterable[Path], since: str) -> Iterator[Request]:
    """Yield the operator's requests for objects, without those that an API server answered before it was ready.

    logs: directories of localkube's logs; since: a timestamp in the format of audit logs.
    """
    for directory in logs:
        starting = [each for each in startups.read(directory) if each.component == "apiserver"]
        for event in _events(directory):
            received = event["requestReceivedTimestamp"]
            if received >= since and not any(each.contains(received) for each in starting):
                yield _request(event)


def write_used(file: Path, rights: Iterable[Right]) -> None:
    """Write rights to a file, for read_used."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(sorted(rights), indent=1))


def read_used(file: Path) -> set[Right]:
    return {Right(*each) for each in json.loads(file.read_text())}


def _events(directory: Path) -> Iterator[Object]:
    """Yield the events of the operator's requests for objects from the directory's audit logs."""
    for log in directory.glob("audit*.log"):
        with log.open() as lines:
            for line in lines:
                if f'"{ACCOUNT}"' in line:
                    event = json.loads(line)
                    if event["user"]["username"] == ACCOUNT and event.get("objectRef"):
                        yield event


def _request(event: Object) -> Request:
    target = event["objectRef"]
    resource = "/".join(target[key] for key in ("resource", "subresource") if target.get(key))
    right = Right(target.get("apiGroup", ""), resource, event["verb"])
    shown = f"{right}: {event['requestURI']}, at {event['requestReceivedTimestamp']}"
    return Request(right, not _refused(event), shown)


def _refused(event: Object) -> bool:
    """Return whether RBAC denied the request.

    A write that a quota or policy rejects does not count as denied. A read with status 403 counts as denied even if the log says
    that RBAC allowed it: the log can show a denied exec as an allowed read.
    """
    decision = (event.get("annotations") or {}).get("authorization.k8s.io/decision")
    is_read = event["verb"] in ("get", "list", "watch")
    return decision != "allow" or (is_read and (event.get("responseStatus") or {}).get("code") == 403)
