"""The phases of a step. Without pydantic, so that the command line can import them and stay fast."""

from __future__ import annotations

from typing import Final

SETUP, HEALTHCHECK, AGENT, VERIFIER, ARTIFACTS = "setup", "healthcheck", "agent", "verifier", "artifacts"
PHASES: Final = (SETUP, HEALTHCHECK, AGENT, VERIFIER, ARTIFACTS)  # in the order in which they run
PRINTING: Final = (SETUP, HEALTHCHECK, AGENT, VERIFIER)  # phases whose output `multistep logs` shows
AGENT_SETUP: Final = "agent setup"  # the phase in which a hosted agent is set up, once, before the first step
