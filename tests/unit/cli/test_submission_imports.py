"""`multistep check` warns of tests that import the agent's code into their own process, and of no other tests."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from hack.paths import ROOT
from multistep.client.task import agent_code_imports

from .conftest import TASK_TOML, Invoke

PYTEST = "#!/bin/bash\npytest /tests/test_it.py && echo 1 > /logs/verifier/reward.txt\n"
NAMED = {"steps/a/instruction.md": "Write `add` in /app/calc.py."}
ANY = {"steps/a/instruction.md": "Write /app/any.py"}
SEPARATE = TASK_TOML + '[steps.verifier]\nenvironment_mode = "separate"\n'


def warnings_of(task: Path, invoke: Invoke, files: dict[str, str]) -> list[str]:
    for path, text in {"steps/a/tests/test.sh": PYTEST, **files}.items():
        (task / path).parent.mkdir(parents=True, exist_ok=True)
        (task / path).write_text(text)
    found = json.loads(invoke("check", task, "-o", "json").stdout)["warnings"]
    return [each["place"] for each in found if "the test's own process" in each["message"]]


@pytest.mark.parametrize(
    ("files", "test"),
    [
        (NAMED, "import sys\nfrom calc import add\n"),
        (NAMED, "import os\ndef test_add():\n    import calc as it\n"),
        (NAMED, "import importlib\ncalc = importlib.import_module('calc')\n"),
        (NAMED, "import importlib.util\nspec = importlib.util.spec_from_file_location('calc', PATH)\n"),
        (ANY, "import runpy\nrunpy.run_path('/app/any.py')\n"),
        (ANY, "import sys\nexec(open('/app/any.py').read())\n"),
        ({"steps/a/instruction.md": "Fix src/shop/cart.py"}, "import sys\nfrom src.shop.cart import Cart\n"),
        ({"steps/a/solution/calc.py": ""}, "import sys\nimport calc\n"),
        ({"steps/a/solution/solve.sh": "#!/bin/sh\ncat > calc.py <<E\nE\n"}, "import sys\nimport calc\n"),
        ({"steps/a/workdir/calc.py": ""}, "import sys\nimport calc\n"),
        ({"environment/app/shop/__init__.py": ""}, "import sys\nfrom shop import cart\n"),
        ({**NAMED, "task.toml": SEPARATE}, "import sys\nimport calc\n"),
    ],
)
def test_a_test_that_imports_the_agents_code_is_a_warning(task: Path, invoke: Invoke, files: dict[str, str], test: str) -> None:
    places = warnings_of(task, invoke, {**files, "steps/a/tests/test_it.py": test})
    assert [place.partition(":")[0] for place in places] == ["steps/a/tests/test_it.py"]
    assert int(places[0].rpartition(":")[2]) >= 2


@pytest.mark.parametrize(
    ("files", "test"),
    [
        ({}, "import pytest, requests, numpy.linalg\nfrom calc import add\n"),  # nothing shows whose module calc is
        (NAMED, "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import calc'])\nCODE = '''\nimport calc\n'''\n"),
        (NAMED, "from . import calc\nfrom .calc import add\n"),
        ({**NAMED, "steps/a/tests/calc.py": ""}, "import calc\n"),  # the tests' own
        ({**NAMED, "tests/calc.py": ""}, "import calc\n"),
        ({"steps/a/instruction.md": "Write json.py"}, "import json\n"),
        ({"steps/a/instruction.md": "Write my-calc.py and recalc.py"}, "import calc\n"),
        (
            {**NAMED, "steps/a/tests/test.sh": "#!/bin/sh\nsetpriv --reuid=1 pytest\necho 1 > /logs/verifier/reward.txt\n"},
            "import calc\n",
        ),
        ({**NAMED, "steps/a/tests/run.py": "subprocess.run(command, user='nobody')\n"}, "import calc\n"),
        ({**NAMED, "steps/a/tests/test.sh": "#!/bin/sh\nnode test.js\necho 1 > /logs/verifier/reward.txt\n"}, "import calc\n"),
        ({**NAMED, "steps/a/tests/data/sample.py": "import calc\n"}, ""),
        (NAMED, "import importlib\nimportlib.import_module('/tests/calc.py')\nexec(open('/tests/any.py').read())\n"),
        (NAMED, "import calc because\n"),
        (ANY, "import docker\ndocker.from_env().containers.get('app').exec('/app/any.py')\n"),  # another process
        ({}, "import runpy\nrunpy.run_path('/opt/grader/any.py')\n"),  # nothing shows that it is the agent's
        ({"environment/any.py": "", "task.toml": SEPARATE}, "import runpy\nrunpy.run_path('/opt/grader/any.py')\n"),
        ({"environment/shop.py": "", "task.toml": SEPARATE}, "import shop\n"),  # the verifier's own image may have it
    ],
)
def test_other_tests_are_none(task: Path, invoke: Invoke, files: dict[str, str], test: str) -> None:
    assert warnings_of(task, invoke, {**files, "steps/a/tests/test_it.py": test}) == []


def test_a_file_of_tests_that_several_steps_share_is_named_once(task: Path, invoke: Invoke) -> None:
    steps = TASK_TOML + '[[steps]]\nname = "b"\n'
    shared = {"tests/test.sh": PYTEST, "tests/test_it.py": "import calc\n", "steps/b/instruction.md": "go on"}
    (task / "steps/a/tests/test.sh").unlink()
    assert warnings_of(task, invoke, {**NAMED, **shared, "task.toml": steps}) == ["tests/test_it.py:1"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("import a" + ".b" * 50_000, id="name"),
        pytest.param("x = " + "[" * 90_000, id="brackets"),
        pytest.param("x = " + "-" * 90_000 + "1", id="signs"),
        pytest.param("import other; " * 10_000, id="imports"),
    ],
)
def test_files_that_are_hard_to_parse_break_no_check(task: Path, invoke: Invoke, text: str) -> None:
    assert warnings_of(task, invoke, {"steps/a/tests/test_it.py": text, "steps/a/instruction.md": "a." * 100_000}) == []


def test_at_most_a_hundred_files_of_at_most_200_kb_are_parsed(task: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, parse = list[int](), ast.parse

    def parsed(data: bytes) -> ast.Module:
        sizes.append(len(data))
        return parse(data)

    monkeypatch.setattr(agent_code_imports, "ast", SimpleNamespace(**{**vars(ast), "parse": parsed}))
    files = {f"steps/a/tests/test_{number}.py": "import other\n" for number in range(150)}
    warnings_of(task, invoke, {**files, "steps/a/tests/test_0.py": "#" * 200_001, "steps/a/tests/test_1.py": "#" * 200_000})
    assert (len(sizes), max(sizes)) == (100, 200_000)


def test_the_examples_import_no_code_of_the_agent(invoke: Invoke) -> None:
    for task in sorted(each.parent for each in (ROOT / "examples").glob("*/task.toml")):
        assert "the test's own process" not in invoke("check", task, "-o", "json").stdout
