"""The operator's settings: one typed object, read once at start from variables named MULTISTEP_..."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Every setting with its unit in its name; lists are JSON."""

    model_config = SettingsConfigDict(env_prefix="MULTISTEP_", frozen=True)

    namespaces: list[str] = []
    """Namespaces to watch; empty: all."""
    operator_image: str = "localhost/multistep-operator:dev"
    """The operator's own image; the init container that brings the runner is made of it."""
    operator_image_pull_policy: str = "IfNotPresent"
    runner_port: int = Field(default=9876, ge=1, le=65535)
    """Port of the runner's readiness endpoint in trial pods."""
    http_port: int = Field(default=8080, ge=0, le=65535)
    """Port of /healthz, /readyz, /metrics and /results; 0: any free one."""
    http_host: str = "0.0.0.0"
    results_dir: Path = Path("/var/lib/multistep")
    """The volume that results are kept on."""
    results_url: str = "http://127.0.0.1:8080"
    """What status.results begins with; service://NAMESPACE/SERVICE:PORT is reached through the API server."""
    linger_seconds: float = Field(default=3.0, ge=0)
    """How long a session stays open for a phase that may end soon."""
    poll_seconds: float = Field(default=60.0, gt=0)
    """How often a running phase is looked at when nothing is heard of it."""
    answer_timeout_seconds: float = Field(default=60.0, gt=0)
    """How long the runner may take for an answer."""
    reconcile_workers: int = Field(default=64, ge=1)
    """Trials that are worked on at the same moment."""
    starting_pods: int = Field(default=50, ge=1)
    """Pods that are starting at the same moment; further trials wait for their turn."""
    open_execs: int = Field(default=48, ge=2)
    """Exec sessions that are open at the same moment."""
    unpack_threads: int = Field(default=2, ge=1)
    """Threads that unpack collected files; they are the only ones beside the event loop's."""
    pod_grace_seconds: int = Field(default=5, ge=0)
    """terminationGracePeriodSeconds of trial pods."""
    network_policies_enforced: bool = False
    """Whether the cluster enforces NetworkPolicies; without, trials of tasks with a network_mode other than public are refused."""
    log_level: str = "INFO"
