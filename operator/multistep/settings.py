"""The operator's settings, which are read once at its start from environment variables named MULTISTEP_..."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel
from pydantic_settings import BaseSettings, SettingsConfigDict

from multistep.api.task.task_toml import GPU_TYPES, GpuLabels
from multistep.engine.journal.results_limits import NO_LIMIT, Amount, ResultsLimits
from multistep.logs import Form

# Loopback and link-local networks, and addresses of cloud metadata services, which hand out credentials.
BLOCKED_NETWORKS = (
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "100.100.100.200/32",
    "168.63.129.16/32",
    "::/128",
    "::1/128",
    "fe80::/10",
    "fd00:ec2::254/128",
)


LABEL_VALUE = r"^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$"


class ModelLimit(BaseModel):
    """The limit of active trials of one model."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    model: str = Field(min_length=1, max_length=512)
    max_active: int = Field(ge=1, alias="maxActive")


class BuildSettings(BaseModel):
    """How the cluster builds the images of tasks with a Dockerfile (docs/how-to/builds.md). This is the chart's value
    ``builds``."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        alias_generator=to_camel,
        coerce_numbers_to_str=True,  # quantities may be numbers in YAML, such as cpu: 2
    )

    registry: str = ""
    image: str = ""
    image_pull_secrets: list[dict[str, str]] = []
    namespace: str = ""
    platform: str = Field(default="linux/amd64", pattern=r"^linux/[a-z0-9]+$")
    parallelism: int = Field(default=4, ge=1)
    retries: int = Field(default=5, ge=0)
    timeout_seconds: float = Field(default=1800.0, gt=0)
    push_timeout_seconds: float = Field(default=600.0, gt=0)
    resources: dict[str, dict[str, str]] = {}
    storage: str = "20Gi"
    base_mirrors: dict[str, list[str]] = {}
    log_retention_seconds: float = Field(default=604_800.0, ge=0)
    push_secret_file: Path | None = None


class Settings(BaseSettings):
    """The operator's settings. Names contain units. Values that are lists or objects are JSON."""

    model_config = SettingsConfigDict(env_prefix="MULTISTEP_", frozen=True, use_attribute_docstrings=True)

    namespaces: list[str] = []
    """Namespaces to watch. Empty means all."""
    shard: str = Field(default="", max_length=63, pattern=LABEL_VALUE)
    """Value of the label multistep.dev/shard of the trials and sweeps that this operator runs. Empty means those without the label.
    Each shard has its own operator, lease and results volume."""
    operator_image: str = "localhost/multistep-operator:dev"
    """The operator's own image. The init container of trial pods copies the runner from it."""
    operator_image_pull_policy: str = "IfNotPresent"
    gateway_url: str = ""
    """URL of the model gateway for agents. If empty, there is no gateway, and trials need spec.agent.access Direct."""
    gateway_admin_url: str = ""
    """URL of the model gateway's admin port."""
    gateway_secret_dir: Path = Path("/etc/multistep/gateway")
    """Mounted Secret that the operator shares with the model gateway."""
    agent_host_image: str = ""
    """Image of the agent host, the container that runs Harbor's agents beside the environment. If empty, trials with such agents
    fail."""
    agent_image_mount: Literal["Volume", "Copy"] = "Volume"
    """How spec.agent.image gets into trial pods. Volume uses an image volume (Kubernetes 1.35 with containerd 2.2 or CRI-O). Copy
    uses an init container that copies the program, on clusters without image volumes."""
    agent_host_memory: str = "1Gi"
    """Memory limit of the agent host."""
    agent_host_port: int = Field(default=9877, ge=1, le=65535)
    """Port of the agent host's readiness endpoint in trial pods."""
    runner_port: int = Field(default=9876, ge=1, le=65535)
    """Port of the runner's readiness endpoint in trial pods."""
    results_port: int = Field(default=8080, ge=0, le=65535)
    """Port of the results server, which a token per trial protects. 0 means any free port."""
    metrics_port: int = Field(default=8081, ge=0, le=65535)
    """Port of /metrics, /healthz and /readyz, which only a NetworkPolicy protects. 0 means any free port."""
    orphans_seconds: float = Field(default=120.0, gt=0)
    """Period of the search for orphans (pods and results without a trial), with a jitter of 25 %."""
    orphans_grace_seconds: float = Field(default=60.0, ge=0)
    """Minimum age of a pod that is deleted as an orphan."""
    results_retention_seconds: float | None = Field(default=None, ge=0)
    """How long results are retained after their trial was deleted. Unset means forever."""
    history_retention_seconds: float | None = Field(default=None, ge=0)
    """How long the history keeps a trial, from the day on which it was created. Unset means forever."""
    listen_host: str = "0.0.0.0"
    """Address on which the results server and the metrics server listen. Use "::" where pods have only IPv6 addresses."""
    results_dir: Path = Path("/var/lib/multistep")
    """Mount path of the results volume."""
    results_step_bytes: int = Field(default=2 << 30, ge=1 << 20)
    """Maximum bytes of logs and artifacts stored per step. Files beyond a limit are left out and listed in manifest.json,
    result.json and the status."""
    results_step_files: int = Field(default=20_000, ge=10)
    """Maximum number of files, directories and links stored per step."""
    results_trial_bytes: int = Field(default=4 << 30, ge=1 << 20)
    """Maximum bytes per trial, with all its attempts, on the results volume."""
    results_trial_files: int = Field(default=100_000, ge=10)
    """Maximum number of files, directories and links per trial on the results volume."""
    results_namespace_bytes: int | None = Field(default=None, ge=1 << 20)
    """Maximum bytes of all trials of one namespace on the results volume. Defaults to 80 % of the volume's size."""
    results_namespace_files: int = Field(default=1_000_000, ge=10)
    """Maximum number of files, directories and links of all trials of one namespace on the results volume, which are also at most
    80 % of its inodes."""
    checkpoints_trial_bytes: int = Field(default=16 << 30, ge=1 << 20)
    """Maximum bytes of the checkpoints of one trial on the results volume. A step whose changes do not fit has no checkpoint."""
    checkpoints_namespace_bytes: int | None = Field(default=None, ge=1 << 20)
    """Maximum bytes of the checkpoints of all trials of one namespace on the results volume. Defaults to 15 % of the volume's
    size."""
    checkpoint_transfers: int = Field(default=4, ge=1)
    """Maximum number of checkpoints that are stored or restored concurrently. One namespace uses at most all slots but one. Further
    trials are queued, while the processes in their pods continue to run."""
    results_collect_seconds: float = Field(default=300.0, gt=0)
    """Timeout of the download of one step's files. Files received before the timeout are stored."""
    results_store: str = ""
    """Object store for the results of finished trials: s3://BUCKET/PREFIX, gs://... or az://... If empty, results stay on the
    volume. No other operator may use the prefix. Credentials and endpoint come from the store's usual environment variables."""
    results_store_ca_file: Path | None = None
    """CA certificates (PEM) that verify the object store's certificate. Defaults to the system's CA certificates."""
    results_signing_key_file: Path | None = None
    """Private key (PEM, unencrypted) that signs the evidence of results. It is read at the operator's start. If unset, the evidence
    is not signed."""
    results_direct_bytes: int | None = Field(default=64 * 2**20, ge=1)
    """Minimum size of a file that the pod uploads directly to the object store."""
    results_url: str = "http://127.0.0.1:8080"
    """Prefix of status.results. Clients reach service://NAMESPACE/SERVICE:PORT through the API server's proxy."""
    linger_seconds: float = Field(default=30.0, ge=0)
    """How long an exec session stays open for a phase that may finish soon, unless other trials are queued for a session."""
    poll_seconds: float = Field(default=300.0, gt=0)
    """Time after which the operator polls a running phase if the pod's readiness, which the runner changes at the end of a phase,
    has not changed. The interval then doubles, up to an hour."""
    answer_timeout_seconds: float = Field(default=60.0, gt=0)
    """Timeout of the runner's answers."""
    reconcile_workers: int = Field(default=64, ge=1)
    """Maximum number of trials reconciled concurrently."""
    starting_pods: int = Field(default=500, ge=1)
    """Maximum number of pods that start concurrently. Further trials are queued. The default is that of the Job controller."""
    models: list[ModelLimit] = []
    """Limits of active trials by model, over all sweeps, as a list of {model, maxActive}, where model is as in spec.agent.model.
    While the provider refuses requests, a model's limit is lower. Further trials are queued without a pod."""
    gpu_types: dict[str, dict[str, tuple[str, ...]]] = {}
    """Node labels of further types of GPU, in addition to the types in docs/reference/task-format.md, for example
    {"rtx6000": {"nvidia.com/gpu.product": ["NVIDIA-RTX-6000-Ada-Generation"]}}. A node needs one of a type's labels."""
    exec_sessions: int = Field(default=48, ge=3)
    """Maximum number of open exec sessions."""
    exec_session_seconds: float = Field(default=900.0, gt=0)
    """Timeout of one exec session, without checkpoints, which have timeouts of their own. It must exceed resultsCollectSeconds. The
    trial continues in the next session."""
    unpack_threads: int = Field(default=2, ge=1)
    """Number of threads that unpack collected files."""
    pod_grace_seconds: int = Field(default=1, ge=0)
    """terminationGracePeriodSeconds of trial pods. The runner ignores SIGTERM, so only other containers need this time."""
    egress: Literal["Disabled", "NetworkPolicy", "Sidecar"] = "Disabled"
    """How the networks of trial pods are limited (docs/how-to/egress.md). Sidecar adds a container with NET_ADMIN to each pod that
    needs one, and can also limit by host name and by phase. NetworkPolicy creates policies, which limit only by address, and which
    the cluster's network plugin must enforce. Disabled rejects tasks with a network_mode other than public."""
    lease_name: str = "multistep"
    """Name of the leader Lease. Replicas that run the same trials must share it."""
    lease_namespace: str = ""
    """Namespace of the leader Lease. Defaults to the operator's own."""
    lease_seconds: float = Field(default=15.0, ge=3)
    """Duration of the leader lease. A standby acquires it this long after the leader's last renewal."""
    pod_name: str = ""
    """Identity of this replica in the lease. Defaults to the host's name."""
    pod_uid: str = ""
    """UID of the operator's pod. A lease held by an earlier container of the same pod is acquired at once."""
    stop_seconds: float = Field(default=5.0, ge=0)
    """Time that running reconciles have to finish on shutdown. Keep it well below terminationGracePeriodSeconds."""
    resync_seconds: float = Field(default=40.0, gt=0)
    """Period of the resync, which lists metadata of trials, sweeps and pods, and requeues those whose watch events were missed."""
    drain: Literal["Move", "Wait"] = "Move"
    """Effect of a node drain. With Move it evicts trial pods, whose trials restart elsewhere. With Wait it waits until the trials
    are finished."""
    metrics_labels: list[Literal["namespace", "agent", "model"]] = ["agent", "model"]
    """Labels of the metrics about trials, steps and model requests (docs/reference/metrics.md)."""
    metrics_label_sets: int = Field(default=200, ge=1)
    """Maximum number of combinations of label values per metric. Further combinations are counted as "other"."""
    otlp_endpoint: str = ""
    """OTLP/HTTP endpoint for traces of trials, such as http://collector:4318. Defaults to the endpoint in the OTEL_ variables, if
    set."""
    task_sources: list[Literal["oci", "git", "url"]] = ["oci", "git", "url"]
    """Kinds of task sources outside the cluster that trials may use."""
    task_allowed_hosts: list[str] = []
    """Patterns of hosts from which tasks may be fetched (*.example.com, HOST:PORT). Empty means all hosts."""
    task_insecure_hosts: list[str] = []
    """Patterns of registries that are accessed without TLS, and of hosts that may get credentials over http://."""
    task_blocked_networks: list[str] = list(BLOCKED_NETWORKS)
    """Networks (CIDR) from which no task is fetched, not even after a redirect. Defaults to loopback and link-local networks and
    the clouds' metadata servers."""
    builds: BuildSettings = BuildSettings()
    """How the images of tasks with a Dockerfile are built in the cluster. The chart sets it from its value builds."""
    task_fetches: int = Field(default=3, ge=1)
    """Maximum number of concurrent fetches of tasks, each in a process of at most 448 MiB. One namespace uses at most all slots but
    one, and at least one."""
    task_fetch_seconds: float = Field(default=120.0, gt=0)
    """Timeout of one fetch of a task."""
    task_cache_dir: Path = Path("/var/cache/multistep")
    """Directory of the cache of fetched tasks. It can be deleted, because tasks are fetched again."""
    task_cache_bytes: int = Field(default=1 << 30, ge=0)
    """Size limit of the cache of fetched tasks. Each running fetch needs up to 1.5 GiB more."""
    log_format: Form = "auto"
    """Format of the log, which is json (one object per line), text, or auto (text on a terminal, otherwise json)."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Minimum level of logged messages."""

    @property
    def known_gpu_types(self) -> GpuLabels:
        """Return the node labels of every known type of GPU, by the type's name in lower case."""
        return {**GPU_TYPES, **{name.lower(): labels for name, labels in self.gpu_types.items()}}

    def results_limits(self, volume_bytes: int) -> ResultsLimits:
        """Return the limits of the results of one step, trial and namespace, given the size of the results volume."""
        namespace = volume_bytes * 4 // 5 if self.results_namespace_bytes is None else self.results_namespace_bytes
        return ResultsLimits(
            step=Amount(self.results_step_bytes, self.results_step_files),
            trial=Amount(self.results_trial_bytes, self.results_trial_files),
            namespace=Amount(namespace, self.results_namespace_files),
        )

    def checkpoint_limits(self, volume_bytes: int) -> ResultsLimits:
        """Return the limits of the checkpoints of one step, trial and namespace, given the size of the results volume."""
        share = self.checkpoints_namespace_bytes
        namespace = Amount(volume_bytes * 15 // 100 if share is None else share, NO_LIMIT)
        return ResultsLimits(Amount(NO_LIMIT, NO_LIMIT), Amount(self.checkpoints_trial_bytes, NO_LIMIT), namespace)

    @field_validator("models")
    @classmethod
    def _are_different(cls, value: list[ModelLimit]) -> list[ModelLimit]:
        names = [each.model for each in value]
        if len(set(names)) < len(names):
            raise ValueError("a model has more than one entry")
        return value

    @field_validator("task_blocked_networks")
    @classmethod
    def _are_networks(cls, value: list[str]) -> list[str]:
        for each in value:
            ipaddress.ip_network(each)
        return value
