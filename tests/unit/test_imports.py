"""Test that no modules import each other in a circle. `make lint` checks the layers of pyproject.toml."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

from hack.paths import ROOT


def circle_in(graph: grimp.ImportGraph) -> list[str]:
    """Return the modules of a circle of imports, [] if there is none. Imports in functions and for type checkers count."""
    sorter = TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules})
    try:
        sorter.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("package", ["multistep", "multistep_host", "hack", "localkube"])
def test_no_imports_form_a_circle(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "agent-host")
    graph = grimp.build_graph(package, cache_dir=None)
    assert circle_in(graph) == []


def test_a_circle_is_found() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in (("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")):
        graph.add_import(importer=importer, imported=imported)
    assert set(circle_in(graph)) == {"a", "b", "c"}
