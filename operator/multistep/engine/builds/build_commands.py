"""The commands that run in a builder's pod: buildah in the container ``main``, skopeo in the container ``push``. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from multistep.api.trial.content_references import Content
from multistep.engine.builds.next_build_action import BUILD
from multistep.engine.journal.operations import Directory, Reset, Start, Upload
from multistep.engine.plan.image_builds import ImageBuild

WORK: Final = "/build"  # writable volume of the container ``main``
OUT: Final = "/out"  # volume with the built image, which the container ``push`` can only read
AUTH: Final = "/auth"  # in-memory volume of the container ``push``, with the registry's credentials during a push

_CONTEXT: Final = f"{WORK}/context"
_CONFIG: Final = f"{WORK}/config"
_IMAGE_FILE: Final = f"docker-archive:{OUT}/image.tar"
_IMAGE: Final = "localhost/multistep/task:latest"  # in the builder's own storage
_BUILD_SCRIPT: Final = f'buildah build "$@"\nbuildah push --quiet {_IMAGE} {_IMAGE_FILE}:{_IMAGE}'
# The credentials are passed on stdin, which the runner does not record. umask 077: only this container's user can read config.json.
_PUSH_SCRIPT: Final = f"""umask 077
cat > {AUTH}/config.json
trap 'rm -f {AUTH}/config.json' EXIT
skopeo copy --authfile {AUTH}/config.json "$@\""""


def build_operations(build: ImageBuild, registries: str, timeout: float) -> Sequence[Reset | Upload | Start]:
    """Return the operations of a build in order; the last one is the build itself. registries: content of registries.conf."""
    context = "/".join(filter(None, [_CONTEXT, build.directory]))
    options = ["--isolation=chroot", "--format=docker", "--layers=false", f"--tag={_IMAGE}", f"--file={context}/{build.dockerfile}"]
    options += [f"--build-arg={name}={value}" for name, value in sorted(build.args.items())]
    options += [f"--target={build.target}"] if build.target else []
    directories = tuple(Directory(path, mode=0o755) for path in (_CONTEXT, _CONFIG, f"{WORK}/tmp", f"{WORK}/run"))
    env = {
        "HOME": WORK,
        "TMPDIR": f"{WORK}/tmp",
        "XDG_RUNTIME_DIR": f"{WORK}/run",
        "STORAGE_DRIVER": "vfs",
        "CONTAINERS_REGISTRIES_CONF": f"{_CONFIG}/registries.conf",
    }
    return (
        Reset("reset", directories),
        Upload("context", _CONTEXT, build.content),
        Upload("config", _CONFIG, Content("file", name="registries.conf", text=registries)),
        Start(
            BUILD,
            ("/bin/sh", "-ec", _BUILD_SCRIPT, "build", *options, context),
            env=env,
            timeout=timeout,
            output=f"{WORK}/log.txt",
            kill_at_end=True,
        ),
    )


def push_operation(id: str, image: str, timeout: float, *, insecure: bool) -> Start:
    """Return the operation that pushes the built image. image: the image's reference; insecure: whether the registry has no TLS."""
    options = [f"--dest-tls-verify={json.dumps(not insecure)}", f"{_IMAGE_FILE}:{_IMAGE}", f"docker://{image}"]
    return Start(
        id,
        ("/bin/sh", "-ec", _PUSH_SCRIPT, "push", *options),
        env={"HOME": "/tmp", "TMPDIR": "/tmp"},
        timeout=timeout,
        kill_at_end=True,
    )


def registries_conf(mirrors: Mapping[str, Sequence[str]], registry: str, insecure: Callable[[str], bool]) -> str:
    """Return the content of registries.conf for base images.

    mirrors: mirrors by registry, tried in order before the registry itself; registry: host of the registry of built images, which
    may also have base images; insecure: function that returns whether a host has no TLS.
    """
    lines = ['unqualified-search-registries = ["docker.io"]', 'short-name-mode = "permissive"']
    for name in dict.fromkeys([*mirrors, registry]):
        lines += ["[[registry]]", *_location(name, insecure)]
        for mirror in mirrors.get(name, ()):
            lines += ["[[registry.mirror]]", *_location(mirror, insecure)]
    return "\n".join(lines) + "\n"


def _location(name: str, insecure: Callable[[str], bool]) -> list[str]:
    host = name.partition("/")[0]
    return [f"location = {json.dumps(name)}", *(["insecure = true"] if insecure(host) else [])]
