"""Build a simulated next release, whose operator and runner support one more protocol version."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hack import image
from hack.paths import ROOT, digest_of
from hack.tools import go, go_environment
from localkube import targets
from localkube.commands import stream
from localkube.config import load_config
from localkube.images import Build
from multistep.runner_client.session import PROTOCOLS

NEW = max(PROTOCOLS) + 1

_WIRE = ROOT / "runner" / "internal" / "wire" / "wire.go"
_RUNNERS = re.compile(r"^var Protocols = \[\]int\{([0-9, ]+)\}$", re.MULTILINE)
_DOCKERFILE = """\
FROM {base}
USER 0
COPY runner /multistep/runner
COPY upgrade.py /tmp/upgrade.py
RUN python /tmp/upgrade.py && rm /tmp/upgrade.py
USER 65532:65532
"""
_UPGRADE = """\
import compileall, pathlib, multistep.runner_client.session as session
file = pathlib.Path(session.__file__)
before = file.read_text()
after = before.replace("PROTOCOLS = {ours}", "PROTOCOLS = {nexts}", 1)
assert before != after
file.write_text(after)
mode = compileall.py_compile.PycInvalidationMode.UNCHECKED_HASH
assert compileall.compile_file(file, quiet=1, force=True, invalidation_mode=mode)
"""


def deliver(directory: Path) -> str:
    """Build the next release's image from this release's, deliver it to the cluster and return its name. directory: an empty
    directory for the build."""
    target = targets.choose(load_config())
    base = image.ensure(target)
    _build_runner(directory)
    (directory / "upgrade.py").write_text(_UPGRADE.format(ours=PROTOCOLS, nexts=(NEW, *PROTOCOLS)))
    dockerfile = directory / "Dockerfile"
    dockerfile.write_text(_DOCKERFILE.format(base=base))
    digest = digest_of([ROOT / "Makefile"], base, (directory / "upgrade.py").read_text(), _next_wire())
    name = f"{image.repository()}:next-{digest}"
    target.engine.build(Build(name, directory, dockerfile))
    image.deliver(target, name)
    return name


def _build_runner(directory: Path) -> None:
    """Build this release's runner with one line changed; the compiler takes the changed file as an overlay."""
    wire, overlay = directory / "wire.go", directory / "overlay.json"
    wire.write_text(_next_wire())
    overlay.write_text(json.dumps({"Replace": {str(_WIRE): str(wire)}}))
    flags = ["-trimpath", "-buildvcs=false", "-overlay", str(overlay), "-ldflags", "-s -w -X main.version=next"]
    stream([str(go()), "build", *flags, "-o", str(directory / "runner"), "."], env=go_environment(), cwd=ROOT / "runner")


def _next_wire() -> str:
    source = _WIRE.read_text()
    [ours] = _RUNNERS.findall(source)
    assert sorted(map(int, ours.split(","))) == sorted(PROTOCOLS), "operator and runner of a release speak the same protocols"
    return _RUNNERS.sub(lambda found: f"var Protocols = []int{{{found[1]}, {NEW}}}", source)
