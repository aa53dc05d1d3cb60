"""The gateway's settings, which the process reads at start from environment variables named MULTISTEP_GATEWAY_..."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from multistep.gateway.model_api.routes import BASE_URLS
from multistep.logs import Form
from multistep.providers import ProviderName


class GatewaySettings(BaseSettings):
    """The settings of the gateway process. The name of a setting ends with its unit."""

    model_config = SettingsConfigDict(env_prefix="MULTISTEP_GATEWAY_", frozen=True, use_attribute_docstrings=True)

    signing_keys_dir: Path
    """Directory of a mounted Secret with the signing keys of step tokens in files k1, k2 and so on. The gateway reads them every 10
    seconds."""
    admin_token_file: Path
    """File with the bearer token of the admin port, at least 32 bytes."""
    ledger_file: Path = Path("/var/lib/multistep-gateway/ledger.sqlite")
    """The ledger. Its directory must survive restarts of the container."""
    listen_host: str = "0.0.0.0"
    """Address on which the servers for agents and the operator listen. Use "::" if pods have only IPv6 addresses."""
    port: int = Field(default=8080, ge=0, le=65535)
    """Port that agents call. 0 is any free port."""
    admin_port: int = Field(default=8081, ge=0, le=65535)
    """Port of the operator's requests and /metrics. 0 is any free port."""
    probe_port: int = Field(default=8082, ge=0, le=65535)
    """Port of the kubelet's probes, /healthz. 0 is any free port."""
    base_urls: dict[ProviderName, str] = BASE_URLS
    """Base URL of each provider, for credentials without their own."""
    plain_upstreams: bool = False
    """Whether credentials may have base URLs without TLS, such as that of a server in the cluster. Keys are sent in clear."""
    hold_seconds: float = Field(default=240.0, gt=0)
    """Maximum time for which a request is queued and waits for the provider's Retry-After. After this time, the answer is 529."""
    drain_seconds: float = Field(default=60.0, ge=0, le=80)
    """Maximum time for which the gateway continues to read an answer, for its usage, after the agent has disconnected. It is at
    most 80, because the operator waits 100 s for a step's usage."""
    answer_timeout_seconds: float = Field(default=600.0, gt=0)
    """Maximum wait for the next byte of the provider's answer."""
    lane_requests: int = Field(default=64, ge=1)
    """Maximum number of requests in flight per credential and model."""
    body_bytes: int = Field(default=32 << 20, ge=1 << 16)
    """Maximum bytes of a request's body."""
    capture_step_bytes: int = Field(default=256 << 20, ge=0)
    """Maximum bytes of the token records of a step. A record that exceeds it is dropped, and the step's records are incomplete."""
    capture_sweep_bytes: int = Field(default=64 << 30, ge=0)
    """Maximum bytes of the token records of all steps of a sweep. Further records are dropped, and their steps are incomplete."""
    metrics_label_sets: int = Field(default=200, ge=1)
    """Maximum number of different pairs of agent and model in the metrics. Further pairs are counted as "other"."""
    settle_seconds: float = Field(default=5.0, ge=0)
    """Time after the gateway's start in which no step may start, because some nodes may not route connections to the gateway
    yet."""
    stop_seconds: float = Field(default=25.0, ge=0)
    """Time that open requests have to finish on shutdown. Keep it below terminationGracePeriodSeconds."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Minimum level of logged messages."""
    log_format: Form = "auto"
    """Format of the log: json (one object per line), text, or auto (text on a terminal, otherwise json)."""
