"""Decides the next action of an image build.

The inputs are the answer of the registry, the state of the builder's pod and the records of the pod's two runners. All functions
are pure.

The registry is the source of truth: the build is finished when the registry has the image's tag. The pod's name is derived from
the build's digest, so all trials that need the image share one pod, also after a restart of the operator. The pod's container
``main`` builds the image and writes it to a file, the only thing that it shares with the container ``push``, which pushes the
image. Each of the two containers has a runner. Each operation has a deterministic id, so the runner runs it at most once.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from multistep.api.trial.content_references import Content
from multistep.api.trial.runner_records import Fields, PhaseResult, Record
from multistep.engine.journal.operations import Reset, ResetDirectory, Start, Upload
from multistep.engine.lifecycle.decisions import PodFacts
from multistep.engine.lifecycle.failure_causes import own_usage_exception
from multistep.engine.plan.image_builds import ImageBuild

BUILD_FAILED: Final = "ImageBuildFailed"
BUILD_LIMIT: Final = "ImageBuildLimit"
BUILD_LOST: Final = "ImageBuildLost"

BUILD: Final = "build"  # id of the operation that builds; earlier operations only prepare the build
_PUSH: Final = "push/"
POLL_SECONDS: Final = 2.0
START_SECONDS: Final = 300.0
VERIFY_SECONDS: Final = 30.0  # time within which the registry must show a pushed tag
LAST_PUSH_PAUSE_SECONDS: Final = 60.0
PUSHING_SECONDS: Final = 7200.0  # time for the pushes, after which the operator replaces the builder's pod
_SHOWN_LINES: Final = 12
_LINE_CHARACTERS: Final = 400  # maximum length of a shown line, of which the end is kept because errors name the cause there
_MAX_CHARACTERS: Final = 1500
# Matches the last line of buildah's output if buildah cannot pull a base image. RUN commands cannot forge it: they end earlier.
_PULL = re.compile(r"^Error: .*(initializing source|pinging container registry|reading manifest|reading blob|copying system image)")
_UNREACHABLE = re.compile(
    r"connection refused|connection reset|i/o timeout|timed? ?out|no such host|temporary failure|no route to host|unexpected EOF"
    r"|server misbehaving|toomanyrequests|too many requests|received unexpected HTTP status: 5|\b50[0234]\b",
    re.IGNORECASE,
)

# Matches the last line of buildah's output if the node's disk is full. A volume over its sizeLimit has its pod evicted instead.
_DISK_FULL = re.compile(r"^Error: .*no space left on device")


@dataclass(frozen=True)
class BuildLimits:
    """Limits of one build."""

    seconds: float
    """Timeout of the build, without the push."""
    memory: str = ""
    """Memory limit as written in the pod's spec, for messages."""
    storage: str = ""
    """Size limit of the pod's volumes as written in the pod's spec, for messages."""

    @property
    def pod_seconds(self) -> float:
        """Return the age in seconds after which the operator replaces a builder's pod."""
        return START_SECONDS + self.seconds + PUSHING_SECONDS


@dataclass(frozen=True)
class BuildState:
    """The observed state of a build."""

    now: float
    image: str = ""
    """Digest of the image in the registry, "" if the registry does not have the image."""
    unreachable: str = ""
    """Why the registry did not answer, "" if it did."""
    pod: PodFacts | None = None
    """The builder's pod, None if it does not exist."""
    push_ended: str = ""
    """How the pod's container ``push`` ended, "" while it runs."""
    records: Mapping[str, Record] | None = None
    """The records of both runners, None if the operator could not read them because the pod does not run."""


@dataclass(frozen=True)
class ImageBuilt:
    """Decision: the image is in the registry. Delete the pod."""

    image: str


@dataclass(frozen=True)
class CreateBuilder:
    """Decision: create the builder's pod."""


@dataclass(frozen=True)
class StartBuild:
    """Decision: upload the build context, then start the build. Operations that already have a record are skipped."""


@dataclass(frozen=True)
class StartPush:
    """Decision: start the push of the image to the registry."""

    id: str
    """Id of the push operation."""


@dataclass(frozen=True)
class BuildPause:
    """Decision: wait for ``seconds``, then observe again."""

    message: str
    seconds: float = POLL_SECONDS
    failing: bool = False
    """Whether an infrastructure failure is the reason."""


@dataclass(frozen=True)
class BuildBroken:
    """Decision: delete the pod and fail the trials that need the image, because another try would not help.

    Either the image cannot be built from this task, or too many pods were lost.
    """

    reason: str
    message: str


@dataclass(frozen=True)
class BuilderLost:
    """Decision: an infrastructure failure ended the build. Delete the pod; another one is created after a back-off."""

    message: str


Decision: TypeAlias = ImageBuilt | CreateBuilder | StartBuild | StartPush | BuildPause | BuildBroken | BuilderLost


def next_build_action(seen: BuildState, limits: BuildLimits) -> Decision:
    """Return what the operator does next for a build, given its observed state."""
    if seen.image:
        return ImageBuilt(seen.image)
    pod = seen.pod
    if pod is None:
        return BuildPause(seen.unreachable, failing=True) if seen.unreachable else CreateBuilder()
    if pod.deleting:
        return BuildPause(f"pod {pod.name} of an earlier build is being deleted")
    if (ended := _ended(pod, seen.push_ended, limits)) is not None:
        return ended
    if not pod.running or seen.records is None:
        return _starting(pod, seen.now)
    if seen.now - pod.created_at > limits.pod_seconds:
        return BuilderLost(
            f"pod {pod.name} did not push the image within {limits.pod_seconds:.0f} s; last: {_push_error(seen.records)}"
        )
    build = seen.records.get(BUILD)
    if build is None:
        return _unprepared(seen.records) or StartBuild()
    if not build.done:
        return BuildPause(f"is being built in pod {pod.name}")
    return _built(PhaseResult.from_record(build), limits) or _push(seen, seen.records)


def last_lines(log: str) -> str:
    """Return the last lines of a build's log, shortened for use in a message."""
    lines = [line.rstrip()[-_LINE_CHARACTERS:] for line in log.strip().splitlines()][-_SHOWN_LINES:]
    return "\n".join(lines)[-_MAX_CHARACTERS:]


def _ended(pod: PodFacts, push_ended: str, limits: BuildLimits) -> Decision | None:
    if pod.terminated and pod.exit_reason == "OOMKilled":
        return BuildBroken(BUILD_LIMIT, f"the build used more memory than builds.resources allows ({limits.memory})")
    if pod.phase == "Failed" and own_usage_exception(pod.message, disrupted=bool(pod.disruption)) is not None:
        return BuildBroken(BUILD_LIMIT, f"the build used more disk than builds.storage = {limits.storage}: {pod.message}")
    if not (pod.terminated or push_ended or pod.disruption or pod.phase in ("Failed", "Succeeded")):
        return None
    why = pod.message or pod.exit_message or pod.disruption or pod.reason or push_ended or f"exit code {pod.exit_code}"
    return BuilderLost(f"pod {pod.name} ended: {why}")


def _starting(pod: PodFacts, now: float) -> Decision:
    if pod.unschedulable:
        return BuildPause(f"pod {pod.name}: {pod.unschedulable}", seconds=10.0, failing=True)
    why = f"{pod.waiting_reason} {pod.waiting_message}".strip()
    if pod.scheduled_at is not None and now - pod.scheduled_at > START_SECONDS and not pod.running:
        return BuilderLost(f"pod {pod.name} did not start within {START_SECONDS:.0f} s: {why or 'no reason given'}")
    return BuildPause(
        f"pod {pod.name} is starting" + (f": {why}" if pod.waiting_message else ""), failing=bool(pod.waiting_message)
    )


def _unprepared(records: Mapping[str, Record]) -> Decision | None:
    """Return the decision after an operation that prepares the build failed, or None if no finished operation failed."""
    for record in records.values():
        if (fault := Fields(record.result or {}, f"result of {record.id}").optional_fault("error")) is not None:
            return BuildBroken(BUILD_LIMIT, f"the build context could not be uploaded: {fault.message}")
    return None


def _built(result: PhaseResult, limits: BuildLimits) -> Decision | None:
    """Return the decision after a failed build, or None if the build succeeded."""
    last = f"its last lines:\n{last_lines(result.tail)}"
    if result.timed_out:
        return BuildBroken(BUILD_LIMIT, f"the build took longer than builds.timeoutSeconds = {limits.seconds:g}; {last}")
    if result.exit_code == 0:
        return None
    if result.error is not None:
        return BuilderLost(f"the build could not be started: {result.error.message}")
    if result.oom_kills:
        return BuildBroken(BUILD_LIMIT, f"the build used more memory than builds.resources allows ({limits.memory}); {last}")
    if (why := _outside_cause(result.tail)) is not None:
        return BuilderLost(f"{why}; {last}")
    return BuildBroken(BUILD_FAILED, f"the build failed; {last}")


def _outside_cause(log: str) -> str | None:
    """Return why a build failed if the registry of a base image did not answer, or the node's disk is full, else None."""
    end = next((line for line in reversed(log.splitlines()) if line.strip()), "")
    if _PULL.match(end) is not None and _UNREACHABLE.search(end) is not None:
        return "a base image could not be pulled"
    return "the node's disk is full" if _DISK_FULL.match(end) else None


def _push(seen: BuildState, records: Mapping[str, Record]) -> Decision:
    """Return the next decision after a successful build: start, await or retry the push.

    Failed pushes are retried with back-off, so a temporary outage of the registry does not require another build.
    """
    tried = _pushes(records)
    if not tried:
        return StartPush(f"{_PUSH}1")
    last = tried[-1]
    if not last.done:
        return BuildPause("is being pushed")
    ended, count = last.ended_at or seen.now, len(tried)
    if PhaseResult.from_record(last).exit_code == 0:
        if seen.unreachable:
            return BuildPause(seen.unreachable, failing=True)
        if seen.now - ended > VERIFY_SECONDS:
            return BuilderLost("the image was pushed, but the registry does not have it")
        return BuildPause("was pushed; the registry does not show it yet")
    left = ended + min(LAST_PUSH_PAUSE_SECONDS, 2.0**count) - seen.now
    if left > 0:
        return BuildPause(f"could not be pushed: {_push_error(records)}", seconds=min(left, POLL_SECONDS), failing=True)
    return StartPush(f"{_PUSH}{count + 1}")


def _pushes(records: Mapping[str, Record]) -> Sequence[Record]:
    return sorted(
        (record for id, record in records.items() if id.startswith(_PUSH)), key=lambda record: int(record.id[len(_PUSH) :])
    )


def has_pushed(records: Mapping[str, Record]) -> bool:
    """Return whether any push has finished, which means that the registry may have the image."""
    return any(push.done for push in _pushes(records))


def _push_error(records: Mapping[str, Record]) -> str:
    tried = [push for push in _pushes(records) if push.done]
    return last_lines(PhaseResult.from_record(tried[-1]).tail) if tried else "nothing was pushed"


@dataclass
class BuilderRetries:
    """Counts how many pods of one build were lost in a row."""

    most: int
    """Maximum number of lost pods. One more fails the build."""
    losses: int = 0
    """Number of pods lost so far."""

    def lost(self, loss: BuilderLost) -> BuildPause | BuildBroken:
        """Count a lost pod. Return the pause before the next pod is created, or the failure if too many pods were lost."""
        self.losses += 1
        if self.losses > self.most:
            return BuildBroken(BUILD_LOST, f"{self.losses} pods in a row were lost; the last one: {loss.message}")
        return BuildPause(f"retrying: {loss.message}", seconds=min(60.0, math.ldexp(2.5, self.losses)), failing=True)


WORK: Final = "/build"  # writable volume of the container ``main``
OUT: Final = "/out"  # volume with the built image; read-only in the container ``push``
AUTH: Final = "/auth"  # in-memory volume of the container ``push``; contains the registry's credentials during a push

_CONTEXT: Final = f"{WORK}/context"
_CONFIG: Final = f"{WORK}/config"
_IMAGE_FILE: Final = f"docker-archive:{OUT}/image.tar"
_IMAGE: Final = "localhost/multistep/task:latest"  # name of the image in the builder's own storage
_BUILD_SCRIPT: Final = f'buildah build "$@"\nbuildah push --quiet {_IMAGE} {_IMAGE_FILE}:{_IMAGE}'
# The credentials are passed on stdin, which the runner does not record. umask 077: only this container's user can read config.json.
_PUSH_SCRIPT: Final = f"""umask 077
cat > {AUTH}/config.json
trap 'rm -f {AUTH}/config.json' EXIT
skopeo copy --authfile {AUTH}/config.json "$@\""""


def build_operations(build: ImageBuild, registries: str, timeout: float) -> Sequence[Reset | Upload | Start]:
    """Return the operations of a build in order. The last one is the build itself.

    ``registries`` is the content of registries.conf. ``timeout`` is in seconds.
    """
    context = "/".join(filter(None, [_CONTEXT, build.directory]))
    options = ["--isolation=chroot", "--format=docker", "--layers=false", f"--tag={_IMAGE}", f"--file={context}/{build.dockerfile}"]
    options += [f"--build-arg={name}={value}" for name, value in sorted(build.args.items())]
    options += [f"--target={build.target}"] if build.target else []
    directories = tuple(ResetDirectory(path, mode=0o755) for path in (_CONTEXT, _CONFIG, f"{WORK}/tmp", f"{WORK}/run"))
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
    """Return the operation that pushes the built image to the reference ``image``, with a timeout in seconds.

    ``insecure`` means that the registry does not use TLS.
    """
    options = [f"--dest-tls-verify={json.dumps(not insecure)}", f"{_IMAGE_FILE}:{_IMAGE}", f"docker://{image}"]
    return Start(
        id,
        ("/bin/sh", "-ec", _PUSH_SCRIPT, "push", *options),
        env={"HOME": "/tmp", "TMPDIR": "/tmp"},
        timeout=timeout,
        kill_at_end=True,
    )


def registries_conf(mirrors: Mapping[str, Sequence[str]], registry: str, insecure: Callable[[str], bool]) -> str:
    """Return the content of registries.conf, which configures where buildah pulls base images.

    ``mirrors`` lists the mirrors of each registry, which buildah tries in order before the registry itself. ``registry`` is the
    host of the registry for built images, which may also have base images. ``insecure`` returns whether a host does not use TLS.
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
