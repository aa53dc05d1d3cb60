"""What follows an exception, by its type: Harbor 0.26's table, and the changes of a spec (spec.scoring.overrideErrorPolicy).

The script reads from it whether a step is verified after its agent's exception; result.json shows all of it, as Harbor's does. What
Multistep does otherwise is in docs/reference/failures.md, whose table is generated from this module. tests/harbor compares the
table with Harbor's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from multistep.api.common.base_model import Model


@dataclass(frozen=True)
class ErrorPolicy:
    """What follows an exception."""

    retry: bool
    """Whether Harbor runs the trial again, within its max_retries. Multistep does so only if the spec says it."""
    grade: bool
    """Whether the step is verified if its agent raised the exception."""
    valid: bool
    """Whether Harbor counts the rewards of the trial."""


class ErrorPolicyOverride(Model):
    """What follows an exception of one type. An unset field changes nothing."""

    retry: bool | None = None
    """If true, the trial runs again from its start in a new pod, within infrastructureRetries, if each exception of its steps has
    retry true. An agent then gets a second chance by failing. Unset or false means never."""
    grade: bool | None = None
    """Whether a step whose agent raised the exception is verified. If unset, as in Harbor 0.26 (docs/reference/failures.md)."""
    valid: bool | None = None
    """If false, a trial with the exception has no score, so sweeps exclude it, and an agent can avoid a 0 by raising the exception.
    If true, the exception excludes no trial, whatever agentErrors and environmentErrors say. If unset, these decide."""


def _class_name(value: str) -> str:
    if not value.isidentifier():
        raise ValueError("must be the bare name of an exception's class, such as ModelNotFoundError")
    return value


ExceptionType = Annotated[str, AfterValidator(_class_name), Field(min_length=1, max_length=200)]
ErrorPolicyOverrides = Annotated[dict[ExceptionType, ErrorPolicyOverride], Field(max_length=64)]

UNKNOWN: Final = ErrorPolicy(retry=True, grade=True, valid=True)
"""The policy of all types that are not in POLICIES."""

_UNUSABLE: Final = ErrorPolicy(retry=True, grade=False, valid=False)
_FAILED_REQUEST: Final = ErrorPolicy(retry=True, grade=True, valid=False)
_FINAL: Final = ErrorPolicy(retry=False, grade=True, valid=False)
_WRONG_CONFIGURATION: Final = ErrorPolicy(retry=False, grade=False, valid=False)
_RESULT: Final = ErrorPolicy(retry=False, grade=True, valid=True)

_COUNTS = "counts, unless `agentErrors` is Exclude"
_VERDICT = "counts 0, unless `environmentErrors` is Exclude"
_NO_KEY = f"{_COUNTS}: the step counts 0"
_LOST = "a lost pod: class Infrastructure, retried, then excluded"

_GROUPS: Final[tuple[tuple[ErrorPolicy, str, str], ...]] = (
    (_RESULT, "", "NonZeroAgentExitCodeError AgentTimeoutError AgentSafetyRefusalError"),
    (_RESULT, "", "ContextWindowExceededError OutputTokenExceededError"),
    (_RESULT, "", "ContextLengthExceededError OutputLengthExceededError ContentPolicyViolationError"),
    (_FAILED_REQUEST, _COUNTS, "ApiError ApiRateLimitError ApiInternalServerError ApiOverloadedError ApiConnectionClosedError"),
    (_FAILED_REQUEST, _COUNTS, "ApiResponseStalledError UnknownApiError NetworkConnectionError ApiConnectionError"),
    (_FAILED_REQUEST, _COUNTS, "ApiUsageLimitError"),
    (_FAILED_REQUEST, _COUNTS, "RateLimitError InternalServerError ServiceUnavailableError APIConnectionError APIError Timeout"),
    (_FINAL, _COUNTS, "UnsupportedModelParametersError"),
    (_FINAL, _COUNTS, "BadRequestError UnprocessableEntityError UnsupportedParamsError APIResponseValidationError"),
    (_FINAL, "the agent spent its budget (`spec.agent.limits`): counts, as after a timeout", "BudgetExceededError"),
    (_WRONG_CONFIGURATION, _NO_KEY, "AgentAuthenticationError ModelNotFoundError ApiProviderResourceNotFoundError"),
    (_WRONG_CONFIGURATION, _NO_KEY, "AuthenticationError PermissionDeniedError NotFoundError"),
    (_FINAL, _VERDICT, "VerifierTimeoutError RewardFileNotFoundError RewardFileEmptyError VerifierOutputParseError"),
    (_UNUSABLE, _VERDICT, "AddTestsDirError"),
    (_UNUSABLE, "does not occur: the files that a verifier left are collected as they are", "DownloadVerifierDirError"),
    (_UNUSABLE, "reason `EnvironmentStartTimeout`: class Infrastructure, excluded", "EnvironmentStartTimeoutError"),
    (_UNUSABLE, "reason `ImageBuildFailed`: class Task, excluded", "SandboxBuildFailedError"),
    (_UNUSABLE, "reason `AgentSetupFailed`: class Infrastructure, retried; of a custom class: counts 0", "AgentSetupTimeoutError"),
    (_UNUSABLE, "class Task: excluded before an agent ran, then as a failed verifier", "HealthcheckError"),
    (_UNUSABLE, f"`OutOfMemoryError`: {_COUNTS}", "SandboxLikelyOutOfMemoryError MemoryLimitExceededError"),
    (_UNUSABLE, _LOST, "SSHAccessError GKEExecStreamClosedError GKEPodNotFoundError RuntimeRequestError"),
    (_WRONG_CONFIGURATION, "does not occur: the agent host has the packages of its agents", "DspyImportError MissingExtraError"),
    (_WRONG_CONFIGURATION, "does not occur: of Harbor's environments", "ServiceOperationsUnsupportedError VercelScopeError"),
    (_WRONG_CONFIGURATION, "reason `RegradeImpossible`: class Configuration, excluded", "RegradeError"),
    (_WRONG_CONFIGURATION, "reason `Stopped`: class User, excluded", "CancelledError"),
)  # fmt: skip

POLICIES: Final[Mapping[str, ErrorPolicy]] = {type_: policy for policy, _, types in _GROUPS for type_ in types.split()}
"""Harbor 0.26's policies (harbor/models/trial/error_policy.py), by the exception's type, which is a bare class name."""

HERE: Final[Mapping[str, str]] = {type_: here for _, here, types in _GROUPS for type_ in types.split()}
"""What Multistep does otherwise, for the docs; "": nothing, but that it retries no trial."""

OUT_OF_RESOURCES: Final = frozenset({"OutOfMemoryError", "OutOfDiskError", "ContainerKilledError"})
"""Multistep's own types of an environment that its agent exhausted or ended. Harbor has other types for these
(SandboxLikelyOutOfMemoryError, MemoryLimitExceededError), after which no reward is valid."""

SPENT_BUDGET: Final = "BudgetExceededError"
"""Raised by Multistep when the agent spent the budget of spec.agent.limits, which is a result as a timeout is. In Harbor it is
litellm's."""


def policy_of(type_: str, overrides: Mapping[str, ErrorPolicyOverride]) -> ErrorPolicy:
    """Return the policy of an exception's type, as Harbor computes it. overrides: spec.scoring.overrideErrorPolicy."""
    policy, change = POLICIES.get(type_, UNKNOWN), overrides.get(type_)
    if change is None:
        return policy
    return ErrorPolicy(
        retry=policy.retry if change.retry is None else change.retry,
        grade=policy.grade if change.grade is None else change.grade,
        valid=policy.valid if change.valid is None else change.valid,
    )


def counts_after(type_: str, overrides: Mapping[str, ErrorPolicyOverride]) -> bool:
    """Return whether a trial counts after this exception of its agent even if spec.scoring.agentErrors is Exclude."""
    change = overrides.get(type_)
    if change is not None and change.valid is not None:
        return change.valid
    return type_ == SPENT_BUDGET or (type_ not in OUT_OF_RESOURCES and POLICIES.get(type_, UNKNOWN).valid)
