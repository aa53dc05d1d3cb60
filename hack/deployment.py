"""Install the operator in the cluster with its chart."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from hack import image
from hack.paths import CACHE, ROOT, VENV
from hack.stages import Failure, print_line, stage
from hack.tools import go, helm, kubectl
from localkube import targets
from localkube.commands import capture, succeeds
from localkube.config import load_config
from localkube.errors import CommandFailed
from localkube.locking import exclusive

NAMESPACE = "multistep-system"
RELEASE = "multistep"
CHART = ROOT / "charts" / "multistep"
_READY_SECONDS = 180
_IMAGE_VALUES = {"settings.agentHostImage": image.AGENT_HOST, "builds.image": image.BUILDER}  # by the chart's value
# Enable all metric labels, because the tests find their trials' metrics by namespace.
_VARIABLES = [
    {"name": "MULTISTEP_METRICS_LABELS", "value": json.dumps(["namespace", "agent"])},
    {"name": "MULTISTEP_METRICS_LABEL_SETS", "value": "5000"},
]


@dataclass(frozen=True)
class Cluster:
    """A running cluster. ``kubectl`` is the path of the program. The environment variables select the cluster."""

    target: targets.Target
    kubectl: str
    variables: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def kubeconfig(self) -> Path:
        return self.target.kubeconfig()

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables for programs that use the cluster, with multistep, kubectl, helm and go on the PATH."""
        programs = [VENV / "bin" / "multistep", Path(self.kubectl), go()]  # Helm is in kubectl's directory
        directories = [str(each.parent) for each in programs if each.is_absolute()]
        path = os.pathsep.join([*directories, self.variables.get("PATH", "")])
        return {
            **self.variables,
            "PATH": path,
            "KUBECONFIG": str(self.kubeconfig),
            "MULTISTEP_RUNNER": str(image.ensure_runner()),  # `multistep build` copies the runner into its images
        }

    def run_kubectl(self, *arguments: str) -> str:
        return capture([self.kubectl, *arguments], env=os.environ | {"KUBECONFIG": str(self.kubeconfig)})


def ensure_cluster(variables: Mapping[str, str] = os.environ, *, with_base: bool = True) -> Cluster:
    """Start the cluster that the variable CLUSTER names, unless it is running, and return it. With ``with_base``, also load
    Debian's base image, which pods of the documents and of the tests use."""
    cluster = deployed(variables)
    with stage("cluster"):
        cluster.target.up()
        if with_base and isinstance(cluster.target, targets.Local):
            cluster.target.load_base()
    return cluster


def deployed(variables: Mapping[str, str] = os.environ) -> Cluster:
    """Return the running cluster that the variable CLUSTER names."""
    target = targets.choose(load_config(variables), variables)
    return Cluster(target, str(kubectl()), variables)


def stop_cluster() -> None:
    """Stop the cluster (`make cluster-down`)."""
    targets.choose(load_config()).down()


def deploy(
    variables: Mapping[str, str] = os.environ, wanted: Sequence[image.Image] = image.ALL, *, with_base: bool = True
) -> Cluster:
    """Install this checkout's operator, wait until it is ready, and return the cluster.

    The images in ``wanted`` are built, if they changed, while the cluster starts. The other arguments are those of ensure_cluster.
    """
    target = targets.choose(load_config(variables), variables)
    image.check_deliverable(target)
    with ThreadPoolExecutor(1) as thread:
        building = thread.submit(image.ensure_all, target, wanted, with_base=with_base)
        cluster = ensure_cluster(variables, with_base=with_base)
        built = building.result()
    with exclusive(CACHE / "deploy.lock"):
        refuse_to_replace(cluster)
        names = image.in_cluster(cluster.target, built)
        program = str(helm())
        with stage("operator (helm upgrade --install)"):
            _clear_interrupted(cluster, program)
            _install(cluster, program, names)
    return cluster


def stop_operator(cluster: Cluster) -> bool:
    """Scale the operator's Deployment to 0. Return False if it does not exist."""
    if not succeeds(_kubectl(cluster, "get", "deployment", RELEASE)):
        return False
    capture(_kubectl(cluster, "scale", "deployment", RELEASE, "--replicas=0"))
    capture(_kubectl(cluster, "wait", "pod", "--for=delete", f"--selector=app.kubernetes.io/name={RELEASE}", "--timeout=60s"))
    return True


def apply_crds(cluster: Cluster) -> None:
    """Apply the CRDs without the chart, for an operator outside the cluster."""
    cluster.run_kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))


def ensure_namespace(cluster: Cluster) -> None:
    """Create the namespace of the operator's lease if it does not exist."""
    if not succeeds(_kubectl(cluster, "get", "namespace", NAMESPACE)):
        cluster.run_kubectl("create", "namespace", NAMESPACE)


def refuse_to_replace(cluster: Cluster) -> None:
    """Raise Failure if the cluster was not named with CLUSTER, and has an operator that `make deploy` did not install."""
    if isinstance(cluster.target, targets.Local) or (cluster.variables.get("CLUSTER") or "auto") != "auto":
        return
    shown = ("get", "deployment", RELEASE, "--ignore-not-found", "--output=jsonpath={.spec.template.spec.containers[0].image}")
    found = capture(_kubectl(cluster, *shown)).strip()
    if found and not found.rpartition(":")[2].startswith(image.TAG_PREFIX):
        raise Failure(
            f"the cluster of {cluster.kubeconfig} has an operator already, of the image {found}: name the cluster with "
            "CLUSTER=current (or kind, k3s) to replace it, or use one of its own with CLUSTER=local"
        )


def _install(cluster: Cluster, program: str, names: Mapping[image.Image, str]) -> None:
    repository, _, tag = names[image.OPERATOR].rpartition(":")
    command = [program, "upgrade", "--install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--create-namespace"]
    images = {"image.repository": repository, "image.tag": tag}
    images |= {key: names[each] for key, each in _IMAGE_VALUES.items() if each in names}
    values = ["--set", ",".join(f"{key}={value}" for key, value in images.items())]
    values += ["--set-json", f"extraEnv={json.dumps(_VARIABLES)}"]
    values += ["--set", "trials.egress=Sidecar"]  # this affects only pods of tasks that limit their network
    if isinstance(cluster.target, targets.Local):  # allow plain HTTP, because the tests' servers on the node have no TLS
        hosts = json.dumps([f"{load_config(cluster.variables).network.api_address}:*"])
        values += ["--set-json", f"settings.taskInsecureHosts={hosts}", "--set", "gateway.settings.plainUpstreams=true"]
    waiting = ["--wait", "--timeout", f"{_READY_SECONDS}s", "--history-max", "3"]
    # --take-ownership, because the CRDs may have been applied without helm (`make run`, `kubectl apply -f crds/`), and #
    # --force-conflicts, because kubectl owns the fields that it changed, such as the replicas that `make run` scaled to 0.
    try:
        capture([*command, *values, *waiting, "--take-ownership", "--force-conflicts"], env=cluster.environment)
    except CommandFailed as error:
        raise Failure(f"{error}\n\n{_why_not_ready(cluster)}") from error


def _clear_interrupted(cluster: Cluster, program: str) -> None:
    """Uninstall a release that an interrupted helm process left pending, because helm refuses to upgrade a pending release.

    The caller holds the deploy lock, so no helm process is running. The CRDs, trials and results are retained.
    """
    listed = capture([program, "list", "--output", "json", "--namespace", NAMESPACE], env=cluster.environment)
    if any(each["name"] == RELEASE and each["status"].startswith("pending") for each in json.loads(listed)):
        print_line("an earlier helm was interrupted: reinstalling")
        capture([program, "uninstall", RELEASE, "--namespace", NAMESPACE, "--wait"], env=cluster.environment)


def _why_not_ready(cluster: Cluster) -> str:
    """Return the pods, Events and logs that show why the operator is not ready."""
    questions = (
        ("get", "pods", "-o", "wide"),
        ("get", "events", "--sort-by=.lastTimestamp"),
        ("logs", f"deployment/{RELEASE}", "--tail=40"),
    )
    return "\n".join(_answer(_kubectl(cluster, *question)) for question in questions)


def _answer(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"$ {' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-1000:]}"


def _kubectl(cluster: Cluster, *arguments: str) -> list[str]:
    return [cluster.kubectl, "--kubeconfig", str(cluster.kubeconfig), "--namespace", NAMESPACE, *arguments]
