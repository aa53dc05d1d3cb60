"""The child's work: unpack one task, check it, and write the tar streams of its uploads to one file."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import mmap
import os
import tempfile
from pathlib import Path
from typing import BinaryIO

from multistep.api.trial.task_source import InlineSource
from multistep.errors import InvalidSpec, InvalidTask, SourceError
from multistep.sources.reader.accept_task import accepted
from multistep.sources.reader.read_messages import Order, error_answer
from multistep.sources.task.bundle import DEFAULT_LIMITS, Bundle, copy_plain
from multistep.sources.task.condition_reasons import DIGEST, TOO_LARGE
from multistep.sources.task.inline_bundle import inline_bundle
from multistep.sources.task.read_limits import CONFIG_BYTES

_CHUNK = 1 << 20


def perform(order: Order) -> bytes:
    """Read the task and return the answer for the operator; any exception becomes an error answer."""
    try:
        return _read(order)
    except (InvalidTask, InvalidSpec, SourceError) as error:
        return error_answer(error)
    except MemoryError:
        return error_answer(SourceError("reading the task needs more memory than the operator allows", reason=TOO_LARGE))
    except OSError as error:
        text = f"the task could not be read on the operator's disk: {error.strerror or error}"
        return error_answer(SourceError(text, transient=True))
    except Exception as error:  # on hostile input, libraries can raise exceptions of any type
        return error_answer(InvalidSpec(f"spec.task: the task cannot be read: {type(error).__name__}"))


def _read(order: Order) -> bytes:
    with tempfile.TemporaryFile(dir=Path(order.output).parent) as plain:
        bundle = _bundle(order, plain)
        with Path(order.output).open("wb") as output:
            return accepted(bundle, verification=order.verification, oracle=order.oracle, write=output.write).answer


def _bundle(order: Order, plain: BinaryIO) -> Bundle:
    if order.form == "inline":
        fields = json.loads(Path(order.path).read_bytes())
        if len(json.dumps(fields["config"])) > CONFIG_BYTES:
            text = f"spec.task.inline.config has more than {CONFIG_BYTES} bytes, which is the limit"
            raise SourceError(text, reason=TOO_LARGE)
        return inline_bundle(InlineSource(**fields))
    with _packed(order) as packed:
        _check_digest(order, packed)
        copy_plain(packed, plain, DEFAULT_LIMITS)
    plain.flush()
    size = os.fstat(plain.fileno()).st_size
    view = memoryview(mmap.mmap(plain.fileno(), size, access=mmap.ACCESS_READ)) if size else memoryview(b"")
    return Bundle.of_tar(plain, view, order.digest)


def _packed(order: Order) -> BinaryIO:
    """Open the packed bundle: the cached file, or a temporary file with the joined parts from ConfigMaps."""
    if order.form == "bundle":
        try:
            return Path(order.path).open("rb")
        except FileNotFoundError:
            text = "the fetched task was evicted from the cache before it was read"
            raise SourceError(text, reason=DIGEST) from None
    whole = tempfile.TemporaryFile(dir=Path(order.path).parent)  # noqa: SIM115 - the caller closes it
    with Path(order.path).open("rb") as lines:
        for line in lines:
            name, _, encoded = line.rstrip(b"\n").partition(b" ")
            try:
                whole.write(base64.b64decode(encoded, validate=True))
            except binascii.Error as error:
                problem = f"the ConfigMap {name.decode()} is not part of a bundle: binaryData.part is not base64"
                raise SourceError(problem) from error
    whole.seek(0)
    return whole


def _check_digest(order: Order, packed: BinaryIO) -> None:
    sha = hashlib.sha256()
    while data := packed.read(_CHUNK):
        sha.update(data)
    found = f"sha256:{sha.hexdigest()}"
    packed.seek(0)
    if found != order.digest:
        if order.form == "bundle":
            raise SourceError(f"the fetched task changed in the cache: its digest is {found}, not {order.digest}", reason=DIGEST)
        raise SourceError(f"the bundle's digest is {found}, not {order.digest}: package the task again")
