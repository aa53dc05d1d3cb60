""".harborignore names the files of tests/ and solution/ that are not uploaded, in gitignore's syntax. As in Harbor 0.25, it also
applies to subdirectories."""

from __future__ import annotations

from pathspec import GitIgnoreSpec

from multistep.errors import InvalidTask
from multistep.sources.task import bundle_links
from multistep.sources.task.bundle import Bundle

FILE_NAME = ".harborignore"
_SCOPES = ("tests", "solution")


class IgnoreRules:
    """The .harborignore rules of one task. They apply in tests/, solution/, steps/*/tests/ and steps/*/solution/ only."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._specs: dict[str, GitIgnoreSpec] = {}

    def excludes(self, path: str) -> bool:
        """Return whether the path is excluded, by its own name or by that of the file to which it links."""
        if self._matches(path):
            return True
        real = bundle_links.resolve(self._bundle, path)
        return real != path and self._matches(real)

    def _matches(self, path: str) -> bool:
        parts = path.split("/")
        if parts[-1] == FILE_NAME:
            return True
        scope = _scope_depth(parts)
        return scope > 0 and any(self._decides(parts, scope, end) for end in range(scope + 1, len(parts) + 1))

    def _decides(self, parts: list[str], scope: int, end: int) -> bool:
        """Return whether the path made of the first `end` parts is excluded. If several rules match it, the last one decides."""
        directory = end < len(parts) or self._is_directory("/".join(parts))
        excluded = False
        for start in range(scope, end):
            name = "/".join(parts[start:end]) + ("/" if directory else "")
            match = self._spec("/".join(parts[:start])).check_file(name).include
            excluded = excluded if match is None else match
        return excluded

    def _is_directory(self, path: str) -> bool:
        try:
            return bundle_links.is_directory(self._bundle, path)
        except InvalidTask:  # the link leads out of the task: not an error here, because a rule may exclude it
            return False

    def _spec(self, directory: str) -> GitIgnoreSpec:
        if directory not in self._specs:
            self._specs[directory] = self._read(f"{directory}/{FILE_NAME}")
        return self._specs[directory]

    def _read(self, path: str) -> GitIgnoreSpec:
        entry = bundle_links.lookup(self._bundle, path)
        try:
            return GitIgnoreSpec.from_lines(bytes(entry.data).decode().splitlines() if entry else [])
        except ValueError as error:
            raise InvalidTask(f"cannot be read: {error}", kind="ValueError", field=path) from error


def _scope_depth(parts: list[str]) -> int:
    """Return the depth of the directory below which rules apply; 0 if no rules apply to the path."""
    if parts[0] in _SCOPES:
        return 1
    return 3 if parts[0] == "steps" and len(parts) > 2 and parts[2] in _SCOPES else 0
