"""Extract the operator's container, variables and roles from the rendered chart."""

from __future__ import annotations

from tests.unit.chart.conftest import Object, only


def container_of(objects: list[Object]) -> Object:
    [container] = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(container)


def variables_of(objects: list[Object]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container_of(objects)["env"] if "value" in each}


def granted(role: Object) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def operator_role(objects: list[Object], kind: str) -> Object:
    others = (":view", ":edit", ":lease", "-test")
    [role] = [each for each in objects if each["kind"] == kind and not each["metadata"]["name"].endswith(others)]
    return role
