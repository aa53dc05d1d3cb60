"""The operator's settings: one typed object, read once at start from variables named MULTISTEP_..."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from .engine.room import Amount, Limits
from .loglines import Form

# Where clouds tell machines their credentials, and the operator's own endpoints.
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


class Settings(BaseSettings):
    """Every setting with its unit in its name; lists are JSON."""

    model_config = SettingsConfigDict(env_prefix="MULTISTEP_", frozen=True, use_attribute_docstrings=True)

    namespaces: list[str] = []
    """Namespaces to watch; empty: all."""
    shard: str = Field(default="", max_length=63, pattern=LABEL_VALUE)
    """Of several operators, which trials (and sweeps) are this one's: those whose label multistep.dev/shard has this value; empty:
    those without the label. Each shard is an operator of its own, with its own lease and results."""
    operator_image: str = "localhost/multistep-operator:dev"
    """The operator's own image; the init container that brings the runner is made of it."""
    operator_image_pull_policy: str = "IfNotPresent"
    runner_port: int = Field(default=9876, ge=1, le=65535)
    """Port of the runner's readiness endpoint in trial pods."""
    results_port: int = Field(default=8080, ge=0, le=65535)
    """Port of the results server, which a token per trial protects; 0: any free one."""
    metrics_port: int = Field(default=8081, ge=0, le=65535)
    """Port of /metrics, /healthz and /readyz, which nothing but a NetworkPolicy protects; 0: any free one."""
    orphans_seconds: float = Field(default=120.0, gt=0)
    """How often what belongs to no trial is looked for, give or take a quarter."""
    orphans_grace_seconds: float = Field(default=60.0, ge=0)
    """How long every pod is left alone by that."""
    results_retention_seconds: float | None = Field(default=None, ge=0)
    """How long results are kept after their trial was deleted; None: for ever."""
    listen_host: str = "0.0.0.0"
    """Address on which the results server and the metrics server listen; "::" where pods have IPv6 addresses only."""
    results_dir: Path = Path("/var/lib/multistep")
    """The volume that results are kept on."""
    results_step_bytes: int = Field(default=2 << 30, ge=1 << 20)
    """Bytes of logs and artifacts that are kept of one step. What exceeds a limit is left out, and named in manifest.json, in
    result.json and in the status."""
    results_step_files: int = Field(default=20_000, ge=10)
    """Files, directories and links that are kept of one step."""
    results_trial_bytes: int = Field(default=4 << 30, ge=1 << 20)
    """Bytes that are kept of one trial on the results volume, with all its attempts."""
    results_trial_files: int = Field(default=100_000, ge=10)
    """Files, directories and links that are kept of one trial on the results volume."""
    results_namespace_bytes: int | None = Field(default=None, ge=1 << 20)
    """Bytes that the trials of one namespace have on the results volume; None: 80 % of the volume's size."""
    results_namespace_files: int = Field(default=1_000_000, ge=10)
    """Files, directories and links that the trials of one namespace have on the results volume."""
    results_collect_seconds: float = Field(default=300.0, gt=0)
    """Timeout of one collection's download. What came until then is kept."""
    results_store: str = ""
    """Object store that the results of finished trials go to: s3://BUCKET/PREFIX, gs://... or az://...; empty: the volume keeps
    them. The prefix must be this operator's alone. Credentials and endpoint: from the usual variables of the environment."""
    results_store_ca_file: Path | None = None
    """PEM certificates that the store's own is checked by; None: those of the system."""
    results_direct_bytes: int | None = Field(default=64 * 2**20, ge=1)
    """Files of at least so many bytes go from the pod straight to that store; None: all go through the operator."""
    results_url: str = "http://127.0.0.1:8080"
    """What status.results begins with; service://NAMESPACE/SERVICE:PORT is reached through the API server."""
    linger_seconds: float = Field(default=3.0, ge=0)
    """How long a session stays open for a phase that may end soon."""
    poll_seconds: float = Field(default=300.0, gt=0)
    """How soon a running phase is looked at when nothing is heard of it; after that when it has run twice as long, at least once
    an hour. Its end is heard of at once by the pod's readiness: this is for pods where that does not work."""
    answer_timeout_seconds: float = Field(default=60.0, gt=0)
    """How long the runner may take for an answer."""
    reconcile_workers: int = Field(default=64, ge=1)
    """Trials that are worked on at the same moment."""
    starting_pods: int = Field(default=500, ge=1)
    """Pods that are starting at the same moment; further trials wait for their turn. The default is as many as Kubernetes' own Job
    controller makes at a time."""
    open_execs: int = Field(default=48, ge=2)
    """Exec sessions that are open at the same moment."""
    exec_session_seconds: float = Field(default=900.0, gt=0)
    """Timeout of one exec session; it must exceed resultsCollectSeconds. The trial continues in the next one."""
    unpack_threads: int = Field(default=2, ge=1)
    """Threads that unpack collected files; they are the only ones beside the event loop's."""
    pod_grace_seconds: int = Field(default=1, ge=0)
    """terminationGracePeriodSeconds of trial pods. The runner waits for the SIGKILL at its end; a sidecar may need the time."""
    network_policy_enforced: bool = False
    """Whether the cluster's network plugin enforces NetworkPolicies. true: each trial pod gets a policy that denies ingress; tasks
    with a network_mode other than public are accepted. false: such tasks are refused."""
    lease_name: str = "multistep"
    """The Lease whose holder works; other replicas stand by. Operators that run the same trials must have the same one."""
    lease_namespace: str = ""
    """Where that Lease is; empty: the operator's own namespace."""
    lease_seconds: float = Field(default=15.0, ge=3)
    """How long after the last that was heard of its holder another replica takes the lease."""
    pod_name: str = ""
    """Who this replica is, for the lease; empty: the host's name."""
    pod_uid: str = ""
    """The pod that the operator runs in: a lease that was left by an earlier container of the same pod is taken at once."""
    stop_seconds: float = Field(default=5.0, ge=0)
    """How long looks at trials may go on when the operator is told to stop; well below terminationGracePeriodSeconds."""
    relist_seconds: float = Field(default=40.0, gt=0)
    """Period of the resync: it lists the metadata of trials, sweeps and pods and requeues what the watch missed an event of."""
    drain: Literal["Move", "Wait"] = "Move"
    """What the drain of a node does: Move evicts trials, which begin anew elsewhere; Wait keeps them until they are over."""
    metrics_labels: list[Literal["namespace", "agent"]] = ["agent"]
    """Labels of the metrics about trials and steps (docs/metrics.md)."""
    metrics_label_sets: int = Field(default=200, ge=1)
    """Number of different sets of these labels' values that a metric has series for; further ones are counted as "other"."""
    otlp_endpoint: str = ""
    """Where traces of trials are sent by OTLP over HTTP (http://collector:4318); empty: nowhere, unless OTEL_ variables say so."""
    task_sources: list[Literal["oci", "git", "url"]] = ["oci", "git", "url"]
    """From where tasks may be fetched besides the cluster itself."""
    task_allowed_hosts: list[str] = []
    """Hosts that trials may name as their task's source, as patterns (*.example.com, HOST:PORT); empty: all."""
    task_insecure_hosts: list[str] = []
    """Registries that are spoken to without TLS, and hosts to which http:// URLs may carry credentials; patterns, too."""
    task_blocked_networks: list[str] = list(BLOCKED_NETWORKS)
    """Networks that no task is fetched from, whatever leads there; by default where clouds tell machines their credentials."""
    task_fetches: int = Field(default=2, ge=1)
    """Tasks that are fetched at the same moment, each in a process of at most 448 MiB."""
    task_fetch_seconds: float = Field(default=120.0, gt=0)
    """How long fetching a task may take."""
    task_cache_dir: Path = Path("/var/cache/multistep")
    """Where fetched tasks are kept; all of it can be lost."""
    task_cache_bytes: int = Field(default=1 << 30, ge=0)
    """How many bytes of them; while one is fetched it takes up to 1.5 GiB more."""
    log_format: Form = "auto"
    """The log's form. json: an object a line; text: for people; auto: text on a terminal, else json."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """How much is logged."""

    def results_limits(self, volume_bytes: int) -> Limits:
        """Return the limits of results on a volume of a size."""
        namespace = volume_bytes * 4 // 5 if self.results_namespace_bytes is None else self.results_namespace_bytes
        return Limits(
            step=Amount(self.results_step_bytes, self.results_step_files),
            trial=Amount(self.results_trial_bytes, self.results_trial_files),
            namespace=Amount(namespace, self.results_namespace_files),
        )

    @field_validator("task_blocked_networks")
    @classmethod
    def _are_networks(cls, value: list[str]) -> list[str]:
        for each in value:
            ipaddress.ip_network(each)
        return value
