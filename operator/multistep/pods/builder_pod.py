"""Builds the manifest of the pod in which buildah builds an image and skopeo pushes it. All functions are pure.

A Dockerfile's commands can control the container ``main``, but not the container ``push``, which has its own file system, user and
process namespace. The containers share only the file with the built image, which ``push`` cannot write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from multistep.api.common import labels
from multistep.api.common.base_model import GROUP
from multistep.engine.builds.next_build_action import AUTH, OUT, WORK, BuildLimits
from multistep.pods import container_statuses, runner_mount
from multistep.pods.pod_identity import CONTAINER, container_image, label_value
from multistep.pods.runner_mount import RUNNER
from multistep.settings import Settings

PUSH: Final = "push"
_SOCKET: Final = "multistep/push"  # unique in the pod, because the containers of a pod share the names of abstract sockets
CALLS: Final[Mapping[str, tuple[str, ...]]] = {CONTAINER: (RUNNER, "call"), PUSH: (RUNNER, "call", "--socket", _SOCKET)}
LABEL_BUILD: Final = f"{GROUP}/build"
ANNOTATION_BUILD: Final = f"{GROUP}/build"  # the whole digest of the build, which is too long for a label
LABEL_OPERATOR: Final = f"{GROUP}/operator"  # lease of the operator that created the pod, as several may share a namespace
_NAME_DIGITS: Final = 40
_BUILDER = 1000  # user and group ID


def pod_name(build: str) -> str:
    """Return the name of a build's pod. ``build`` is the build's digest."""
    return f"multistep-build-{build[:_NAME_DIGITS]}"


def build_of(pod: Mapping[str, Any]) -> str:
    """Return the digest of the build for which a pod was created, "" if it is not a builder's pod."""
    return str((pod["metadata"].get("annotations") or {}).get(ANNOTATION_BUILD, ""))


def builder_selector(settings: Settings) -> str:
    """Return the label selector of the builders' pods that this operator created."""
    return f"{LABEL_BUILD},{LABEL_OPERATOR}={_operator(settings)}"


def _operator(settings: Settings) -> str:
    return label_value(f"{settings.lease_namespace}.{settings.lease_name}")


def push_ended(pod: Mapping[str, Any]) -> str:
    """Return how the container ``push`` ended, "" while it runs."""
    container = container_statuses.container_named(PUSH, (pod.get("status") or {}).get("containerStatuses"))
    ended = (container.get("state") or {}).get("terminated")
    return f"the container {PUSH} ended with status {ended.get('exitCode')} ({ended.get('reason')})" if ended else ""


def build_limits(settings: Settings) -> BuildLimits:
    """Return the limits of a build."""
    builds = settings.builds
    return BuildLimits(builds.timeout_seconds, builds.resources.get("limits", {}).get("memory", "no limit"), builds.storage)


def builds_namespace(settings: Settings) -> str:
    """Return the namespace of builders' pods."""
    return settings.builds.namespace or settings.lease_namespace or "default"


def builder_manifest(build: str, about: str, settings: Settings) -> dict[str, Any]:
    """Return the manifest of a build's pod. ``about`` is the trial whose Dockerfile is built, for an annotation."""
    builds = settings.builds
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(build),
            "namespace": builds_namespace(settings),
            "labels": {
                **labels.MANAGED,
                LABEL_BUILD: build[:_NAME_DIGITS],
                LABEL_OPERATOR: _operator(settings),
            },
            "annotations": {ANNOTATION_BUILD: build, f"{GROUP}/built-for": about},
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": settings.pod_grace_seconds,
            "activeDeadlineSeconds": int(build_limits(settings).pod_seconds),
            **({"imagePullSecrets": builds.image_pull_secrets} if builds.image_pull_secrets else {}),
            "nodeSelector": dict(zip(("kubernetes.io/os", "kubernetes.io/arch"), builds.platform.split("/"), strict=True)),
            "securityContext": {"fsGroup": _BUILDER},
            "initContainers": [_installer(settings)],
            "containers": [_main(settings), _push(settings)],
            "volumes": [
                runner_mount.runner_volume(),
                {"name": "work", "emptyDir": {"sizeLimit": builds.storage}},
                {"name": "out", "emptyDir": {"sizeLimit": builds.storage}},
                {"name": "auth", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                {"name": "tmp", "emptyDir": {"sizeLimit": builds.storage}},
            ],
        },
    }


def _main(settings: Settings) -> dict[str, Any]:
    """Return the container that builds the image.

    A RUN command runs in a user namespace, whose root has no privileges outside of it. newuidmap and newgidmap, which set up the
    namespace, need SETUID and SETGID. The container has no seccomp profile, because the default profile forbids user namespaces.
    """
    return {
        **_serving(CONTAINER, settings, "multistep/runner", settings.runner_port),
        "resources": settings.builds.resources,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _BUILDER,
            "runAsGroup": _BUILDER,
            "capabilities": {"drop": ["ALL"], "add": ["SETUID", "SETGID"]},
        },
        "workingDir": WORK,
        "volumeMounts": [
            runner_mount.runner_mount(),
            {"name": "work", "mountPath": WORK},
            {"name": "out", "mountPath": OUT},
        ],
    }


def _push(settings: Settings) -> dict[str, Any]:
    return {
        **_serving(PUSH, settings, _SOCKET, settings.agent_host_port),
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {**runner_mount.UNPRIVILEGED, "seccompProfile": {"type": "RuntimeDefault"}},
        "workingDir": "/tmp",
        "volumeMounts": [
            runner_mount.runner_mount(),
            {"name": "out", "mountPath": OUT, "readOnly": True},
            {"name": "auth", "mountPath": AUTH},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def _serving(name: str, settings: Settings, socket: str, port: int) -> dict[str, Any]:
    return {
        "name": name,
        **container_image(settings.builds.image, settings.operator_image_pull_policy),
        "command": [RUNNER, "serve", "--socket", socket, "--port", str(port)],
        "env": [dict(runner_mount.POD_UID)],
    }


def _installer(settings: Settings) -> dict[str, Any]:
    image = container_image(settings.operator_image, settings.operator_image_pull_policy)
    return runner_mount.runner_installer(
        image, runAsNonRoot=True, runAsUser=runner_mount.USER, seccompProfile={"type": "RuntimeDefault"}
    )
