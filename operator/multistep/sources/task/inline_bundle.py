"""The bundle of an inline task, which is part of the trial's spec."""

from __future__ import annotations

from multistep.api.trial.task_source import InlineSource
from multistep.errors import InvalidSpec, SourceError
from multistep.sources.task.bundle import Bundle, Entry, safe_path

_FIELD = "spec.task.inline.files"


def inline_bundle(source: InlineSource) -> Bundle:
    """Return the bundle of spec.task.inline; files named *.sh are executable. Raises InvalidSpec for an invalid path."""
    if "task.toml" in source.files:
        raise InvalidSpec(f"{_FIELD}: task.toml cannot be a file here: put its content into spec.task.inline.config")
    try:
        files = [(safe_path(path), text) for path, text in source.files.items()]
        if len(dict(files)) < len(files):
            raise SourceError("two paths are the same")
        return Bundle.of({path: _entry(path, text) for path, text in files}, source.config)
    except (SourceError, UnicodeEncodeError) as error:
        raise InvalidSpec(f"{_FIELD}: {error}") from error


def _entry(path: str, text: str) -> Entry:
    return Entry("file", 0o755 if path.endswith(".sh") else 0o644, data=text.encode())
