"""Finds out whether the class of an import path (package.module:Class) exists, without running any of its code. The agent may have
written the code, and could make it fail on purpose."""

from __future__ import annotations

import ast
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path


def missing_part(import_path: str) -> str:
    """Return which part of an import path does not exist, such as "module 'a.b'" or "class 'C'", or "" if no part is known to be
    missing."""
    module, _, name = import_path.partition(":")
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for number, part in enumerate(parts, 1):
        package = ".".join(parts[:number])
        places = None if spec is None else spec.submodule_search_locations
        if number > 1 and places is None:  # the parent is not a package
            return f"module {package!r}"
        spec = _top_level(package) if places is None else PathFinder.find_spec(part, list(places))
        if spec is None:
            return f"module {package!r}"
    return "" if spec is None or _may_bind(spec, name) else f"class {name!r} in module {module!r}"


def _top_level(name: str) -> ModuleSpec | None:
    """Return where the daemon finds a module. The daemon also searches its working directory."""
    try:
        return find_spec(name) or PathFinder.find_spec(name, [str(Path.cwd()), *sys.path])
    except ValueError:  # a module of this program whose origin is unknown
        return None


def _may_bind(spec: ModuleSpec, name: str) -> bool:
    """Return whether the module's source binds the name, or may bind it in a way that only running the code shows."""
    if spec.origin is None or not spec.origin.endswith(".py"):
        return True
    try:
        tree = ast.parse(Path(spec.origin).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return True
    bound = {getattr(each, "id", None) or getattr(each, "name", None) or getattr(each, "asname", None) for each in ast.walk(tree)}
    imported = {each.asname or each.name for each in ast.walk(tree) if isinstance(each, ast.alias)}
    return name in bound | imported or bool({"*", "__getattr__", "globals", "setattr"} & (bound | imported))
