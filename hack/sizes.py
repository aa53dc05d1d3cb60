"""Check the limits on the size of modules, classes and functions. They keep functions short and modules about one subject."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

MODULE_LINES = 400
CLASS_METHODS = 20
FUNCTION_LINES = 40
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def too_large(directories: Sequence[Path]) -> list[str]:
    """Return a line for each module, class and function below the directories that exceeds a limit."""
    files = sorted(file for directory in directories for file in directory.rglob("*.py"))
    return [f"{file}:{found}" for file in files for found in _in_module(file.read_text())]


def _in_module(text: str) -> Iterator[str]:
    if (lines := text.count("\n")) > MODULE_LINES:
        yield f"1: the module has {lines} lines, at most {MODULE_LINES}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and (methods := sum(isinstance(each, _FUNCTIONS) for each in node.body)) > CLASS_METHODS:
            yield f"{node.lineno}: class {node.name} has {methods} methods, at most {CLASS_METHODS}"
        if isinstance(node, _FUNCTIONS) and (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES:
            yield f"{node.lineno}: {node.name} has {lines} lines, at most {FUNCTION_LINES}"
