"""Options of several parts of the client: the cluster, the agent's model and the judge's.

This module imports nothing of ours, so that --help of the command line is fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A cluster and a namespace. A field that is None has its value in the kubeconfig."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None


@dataclass(frozen=True)
class ModelOptions:
    """The options for agents of Harbor, as the command line has them."""

    model: str | None = None
    """PROVIDER/NAME."""
    version: str | None = None
    """Version of the agent's program."""
    keys: Sequence[str] = ()
    """Each [NAME=]SECRET:KEY, the provider's key in an existing Secret."""
    kwargs: Sequence[str] = ()
    """Each NAME=VALUE, an argument of the agent's class; VALUE is JSON or a string."""
    base_url: str | None = None
    access: str | None = None
    """Gateway or Direct."""
    preinstalled: bool = False
    """Whether the image has the agent's program."""
    images: Sequence[str] = ()
    """Each [AGENT=]IMAGE, an image of the agent's program."""
    max_cost: float | None = None
    """Budget of a trial in US dollars."""
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None

    @property
    def given(self) -> bool:
        """Report whether any option is given."""
        return self != ModelOptions()


@dataclass(frozen=True)
class JudgeOptions:
    """The options for the model that the task's tests ask, as the command line has them."""

    model: str | None = None
    """PROVIDER/NAME."""
    keys: Sequence[str] = ()
    """Each [NAME=]SECRET:KEY, the provider's key in an existing Secret."""
    base_url: str | None = None
    max_cost: float | None = None
    """Budget of the judge in a trial, in US dollars."""
    model_env: Sequence[str] = ()
    """Names of the variables from which the tests read the model."""

    @property
    def given(self) -> bool:
        """Report whether any option is given."""
        return self != JudgeOptions()
