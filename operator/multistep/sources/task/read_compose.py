"""Reads a task's compose file with the compose reader (compose/), a program that uses Docker Compose's library.

The program gets the texts that it needs on stdin, has an empty environment, and opens no file. It runs in the child process that
reads the task.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from multistep.api.task.layout import Host, IgnoredKey, Mount, Service, Services
from multistep.api.task.task_toml import EnvironmentConfig
from multistep.engine.plan.plan_services import placeholder
from multistep.engine.plan.resolve_templates import referenced_variable
from multistep.errors import InvalidTask, SourceError
from multistep.sources.task import bundle_links
from multistep.sources.task.bundle import Bundle, BundleEntry, pack_entries
from multistep.sources.task.read_limits import more_processes

COMPOSE_FILE: Final = "docker-compose.yaml"
_NAME: Final = "compose"
_PACKAGE = Path(__file__).resolve().parents[2]  # operator/multistep
_MAX_REFUSED: Final = 50
_PLACES = (Path("/multistep") / _NAME, _PACKAGE / "_runner" / _NAME, _PACKAGE.parents[1] / "compose" / "bin" / _NAME)
_SECONDS: Final = 30
_TEXT_BYTES: Final = 256 << 10
_FILES_BYTES: Final = 256 << 10  # maximum compressed size of all mounted files together, because the pod's manifest contains them
_OLD_LOGS = {"VERIFIER_LOGS": "verifier", "AGENT_LOGS": "agent", "ARTIFACTS": "artifacts"}
_SERVICES = TypeAdapter(tuple[Service, ...])
_HOSTS = TypeAdapter(tuple[Host, ...])
_MOUNT_FIELDS = frozenset(field.name for field in fields(Mount))


def read_services(bundle: Bundle, directory: str, environment: EnvironmentConfig) -> Services:
    """Return the services of the compose file in a directory of the task.

    ``environment`` is the table [environment] of task.toml, whose env has the values of ${NAME} in the file. Raises InvalidTask,
    with the key and the line of everything that a trial does not support, and SourceError if the compose reader is missing.
    """
    path = f"{directory}/{COMPOSE_FILE}"
    request: dict[str, Any] = {"path": path, "text": _text(bundle, path, path), "variables": _variables(environment)}
    answer = _ask(request, path)
    if needs := answer.get("needs"):
        answer = _ask(request | {"files": {file["path"]: _env_file(bundle, path, file) for file in needs}}, path)
    if refused := answer.get("refused"):
        raise _refusal(path, refused)
    return _services(bundle, path, answer)


def compose_reader() -> Path:
    """Return the compose reader's path. Raises SourceError if it does not exist."""
    program = next((place for place in _PLACES if place.is_file()), None)
    if program is None:
        raise SourceError("the compose reader is missing: `make image` builds compose/bin/compose")
    return program


def _ask(request: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Run the compose reader once, and return its answer. The reader limits its own memory and CPU time."""
    with more_processes():
        try:
            done = subprocess.run(
                [compose_reader(), "read"],
                input=json.dumps(request).encode(),
                capture_output=True,
                env={},
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise InvalidTask(f"took longer than {_SECONDS} s to read", kind="ValueError", field=path) from None
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip().splitlines()[:1]
        raise InvalidTask(f"cannot be read: {''.join(why)[:300] or f'status {done.returncode}'}", kind="ValueError", field=path)
    answer: Mapping[str, Any] = json.loads(done.stdout)
    return answer


def _refusal(path: str, refused: Sequence[Mapping[str, Any]]) -> InvalidTask:
    """Return an error about all keys that a trial does not support."""
    return InvalidTask.joined(
        [InvalidTask(key["message"], kind="ValueError", field=_key_place(path, key)) for key in refused[:_MAX_REFUSED]]
    )


def _key_place(path: str, key: Mapping[str, Any]) -> str:
    return ": ".join(filter(None, (_place(path, key["line"]), key["key"])))


def _place(path: str, line: int) -> str:
    return f"{path}:{line}" if line else path


def _variables(environment: EnvironmentConfig) -> dict[str, str]:
    """Return the values of ${NAME} in the compose file, as in Harbor 0.26 (docker.compose_env). If a value refers to the trial's
    variables, it is a placeholder, because the trial is not known yet."""
    own = {name: placeholder(name) if referenced_variable(value) else value for name, value in environment.env.items()}
    infra = {
        **{f"HOST_{name}_PATH": f"/multistep-logs/{directory}" for name, directory in _OLD_LOGS.items()},
        **{f"ENV_{name}_PATH": f"/logs/{directory}" for name, directory in _OLD_LOGS.items()},
        **({"CPUS": str(environment.cpus)} if environment.cpus else {}),
        **({"MEMORY": f"{environment.memory_mb}M"} if environment.memory_mb else {}),
        **({"PREBUILT_IMAGE_NAME": environment.docker_image} if environment.docker_image else {}),
    }
    # Harbor writes TEST_DIR into the compose file of each task that it converts from Terminal-Bench.
    return {"TEST_DIR": "/tests"} | own | infra


def _text(bundle: Bundle, path: str, field: str) -> str:
    entry = bundle_links.entry_at(bundle, path)
    if entry is None or entry.kind != "file":
        raise InvalidTask(f"{path} does not exist in the task", kind="FileNotFoundError", field=field)
    if len(entry.data) > _TEXT_BYTES:
        text = f"{path} has {len(entry.data)} bytes, more than the limit of {_TEXT_BYTES}"
        raise InvalidTask(text, kind="ValueError", field=field)
    try:
        return bytes(entry.data).decode()
    except UnicodeDecodeError as error:
        raise InvalidTask(f"{path} is not UTF-8 text: {error}", kind="ValueError", field=field) from error


def _env_file(bundle: Bundle, path: str, file: Mapping[str, Any]) -> str:
    if not file["required"] and not bundle_links.is_file(bundle, file["path"]):
        return ""
    return _text(bundle, file["path"], _place(path, file["line"]))


def _services(bundle: Bundle, path: str, answer: Mapping[str, Any]) -> Services:
    chosen: dict[str, BundleEntry] = {}
    services = []
    for service in answer["services"]:
        mounts = [_mount(bundle, path, mount, chosen) for mount in service["mounts"] or ()]
        services.append({**{key: value for key, value in service.items() if value is not None}, "mounts": mounts})
    files = pack_entries(chosen) if chosen else b""
    if len(files) > _FILES_BYTES:
        limit = f"{len(files)} packed bytes, more than the limit of {_FILES_BYTES}"
        text = f"mounts files of the task with {limit}: put them into an image"
        raise InvalidTask(text, kind="ValueError", field=path)
    return Services(
        path=path,
        services=_SERVICES.validate_python(services),
        hosts=_HOSTS.validate_python(answer.get("hosts") or ()),
        files=base64.b64encode(files).decode(),
        ignored=tuple(IgnoredKey(_key_place(path, key), key["message"]) for key in answer.get("ignored") or ()),
        variables={name: f"{_place(path, use['line'])}: {use['key']}" for name, use in (answer.get("variables") or {}).items()},
    )


def _mount(bundle: Bundle, path: str, mount: Mapping[str, Any], chosen: dict[str, BundleEntry]) -> Mount:
    """Return a mount. If it mounts files of the task, add them to ``chosen``, and set the mount's source to NUMBER. A single file
    is added as NUMBER, a directory's files as NUMBER/PATH. Links in the path of the mounted file or directory are resolved."""
    plain = {name: value for name, value in mount.items() if name in _MOUNT_FIELDS and value is not None}
    result = Mount(**plain)
    if result.kind != "file":
        return result
    source = str(len({name.partition("/")[0] for name in chosen}))
    if mount["content"] is not None:
        chosen[source] = BundleEntry("file", result.mode or 0o444, data=mount["content"].encode())
        return replace(result, source=source)
    field = _place(path, mount["line"])
    if (content := bundle_links.entry_at(bundle, result.source)) is None:
        raise InvalidTask(f"{result.source} does not exist in the task", kind="FileNotFoundError", field=field)
    for name, entry in _below(bundle, bundle_links.resolve_links(bundle, result.source), content):
        mode = result.mode if result.mode and entry.kind == "file" else entry.mode
        chosen[f"{source}/{name}" if name else source] = replace(entry, mode=mode)
    return replace(result, source=source)


def _below(bundle: Bundle, real: str, entry: BundleEntry) -> Iterator[tuple[str, BundleEntry]]:
    """Yield a file, or a directory and everything below it, with relative paths. Links in a directory stay links."""
    yield "", entry
    if entry.kind != "dir":
        return
    prefix = f"{real}/"
    for name, entry in bundle.entries.items():
        if name.startswith(prefix):
            yield name.removeprefix(prefix), entry
