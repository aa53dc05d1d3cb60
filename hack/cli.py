"""Run the Makefile's targets, which are Python functions, by name."""

import os
from collections.abc import Callable, Sequence

from hack import checks, deployment, end_to_end, image, python_env, trials
from hack.stages import Failure, print_line
from localkube.errors import LocalkubeError


def main(arguments: Sequence[str]) -> int:
    """Run one target and return its exit code."""
    name = arguments[0] if len(arguments) == 1 else ""
    if name not in _TARGETS:
        print_line(f"usage: hack/dev {'|'.join(_TARGETS)}")
        return 2
    try:
        _TARGETS[name]()
    except Failure as failure:
        print_line(f"{name}: {failure}")
        return 1
    except LocalkubeError as error:
        print_line(f"{name}: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _with_python(target: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        python_env.ensure()
        target()

    return run


def _on_own_cluster(target: Callable[[], object]) -> Callable[[], None]:
    """Return the target on a cluster that only this project uses, because tests stop nodes and delete objects."""

    def run() -> None:
        if (os.environ.get("CLUSTER") or "auto") == "auto":
            os.environ["CLUSTER"] = "own"
        _with_python(target)()

    return run


def _cluster() -> None:
    print(f"export KUBECONFIG={deployment.ensure_cluster().kubeconfig}")


def _deploy() -> None:
    print(f"export KUBECONFIG={deployment.deploy().kubeconfig}")


_TARGETS: dict[str, Callable[[], object]] = {
    "setup": python_env.ensure,
    "lock": python_env.lock,
    "demo": trials.demo,
    "test": _on_own_cluster(checks.everything),
    "test-long": _on_own_cluster(checks.long_tests),
    "test-agents": _on_own_cluster(end_to_end.run_agents),
    "lint": _with_python(checks.lint),
    "go-tests": checks.go_tests,
    "unit": _with_python(checks.unit),
    "e2e": _on_own_cluster(end_to_end.run),
    "generate": _with_python(checks.generate),
    "cluster": _cluster,
    "cluster-down": deployment.stop_cluster,
    "image": image.main,
    "deploy": _deploy,
    "run": _with_python(trials.run),
    "bench": _on_own_cluster(trials.bench),
    "chaos": _on_own_cluster(trials.chaos),
    "conformance": _on_own_cluster(trials.conformance),
}
