""".harborignore: what of tests/ and solution/ is not uploaded. Gitignore syntax, inherited downwards (Harbor 0.25)."""

from __future__ import annotations

from pathspec import GitIgnoreSpec

from ..errors import InvalidTask
from . import links
from .bundle import Bundle

FILE_NAME = ".harborignore"
_SCOPES = ("tests", "solution")


class IgnoreRules:
    """The rules of one task. They hold in tests/, solution/, steps/*/tests/ and steps/*/solution/ only."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._specs: dict[str, GitIgnoreSpec] = {}

    def excludes(self, path: str) -> bool:
        """Whether the path is left out: by its own name, or by the name of what it links to."""
        if self._matches(path):
            return True
        real = links.resolve(self._bundle, path)
        return real != path and self._matches(real)

    def _matches(self, path: str) -> bool:
        parts = path.split("/")
        if parts[-1] == FILE_NAME:
            return True
        scope = _scope_depth(parts)
        return scope > 0 and any(self._decides(parts, scope, end) for end in range(scope + 1, len(parts) + 1))

    def _decides(self, parts: list[str], scope: int, end: int) -> bool:
        """Whether the path's first `end` parts are excluded: the last rule that says anything wins."""
        directory = end < len(parts) or self._is_directory("/".join(parts))
        excluded = False
        for start in range(scope, end):
            name = "/".join(parts[start:end]) + ("/" if directory else "")
            said = self._spec("/".join(parts[:start])).check_file(name).include
            excluded = excluded if said is None else said
        return excluded

    def _is_directory(self, path: str) -> bool:
        try:
            return links.is_directory(self._bundle, path)
        except InvalidTask:  # a link out of the task may be excluded: then it does no harm
            return False

    def _spec(self, directory: str) -> GitIgnoreSpec:
        if directory not in self._specs:
            self._specs[directory] = self._read(f"{directory}/{FILE_NAME}")
        return self._specs[directory]

    def _read(self, path: str) -> GitIgnoreSpec:
        entry = links.lookup(self._bundle, path)
        try:
            return GitIgnoreSpec.from_lines(bytes(entry.data).decode().splitlines() if entry else [])
        except ValueError as error:
            raise InvalidTask(f"cannot be read: {error}", kind="ValueError", field=path) from error


def _scope_depth(parts: list[str]) -> int:
    """How many parts lead to the directory in which rules begin to hold; 0 when the path is in none."""
    if parts[0] in _SCOPES:
        return 1
    return 3 if parts[0] == "steps" and len(parts) > 2 and parts[2] in _SCOPES else 0
