"""The gateway's settings fit those of the operator, which calls it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from multistep.gateway.http.operator_port import MARGIN_SECONDS
from multistep.gateway.operator_client import CLOSE_TIMEOUT_SECONDS
from multistep.gateway.settings import GatewaySettings


def settings(drain_seconds: float) -> GatewaySettings:
    return GatewaySettings(signing_keys_dir=Path("/keys"), admin_token_file=Path("/token"), drain_seconds=drain_seconds)


def test_the_operator_waits_longer_for_a_steps_usage_than_the_gateway_may_wait_for_open_requests() -> None:
    assert settings(drain_seconds=80).drain_seconds + MARGIN_SECONDS < CLOSE_TIMEOUT_SECONDS
    with pytest.raises(ValidationError, match="less than or equal to 80"):
        settings(drain_seconds=80.1)
