"""Convert a case to the manifest of the equivalent MultiStepTrial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from multistep.api.common.base_model import API_VERSION
from multistep.api.trial.trial import KIND
from multistep.client.submit.manifests import Manifest

from .case import Case
from .options import ECHO_AGENT, SHELL_AGENT, AgentOptions, ArtifactOptions, Options, VerifierOptions

COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    SHELL_AGENT: ("bash", "-c", 'text=$(cat "$MULTISTEP_INSTRUCTION_FILE") && exec bash -c "$text"'),
    ECHO_AGENT: ("bash", "-c", 'cat "$MULTISTEP_INSTRUCTION_FILE" > /app/instruction.txt'),
}


def manifest(case: Case, *, name: str, namespace: str, bundle: Manifest, image: str | None) -> Manifest:
    """Return the trial's manifest. bundle: value of spec.task.bundle; image: the environment's image, None to use the task's."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"task": {"name": case.title, "bundle": bundle}, **spec(case.options, case.extra_instructions(), image)},
    }


def spec(options: Options, extra_instructions: Sequence[str], image: str | None) -> Manifest:
    """Return the trial's spec without `task`. Omit unset fields."""
    return _given(
        environment=_given(
            image=image,
            imagePullPolicy="IfNotPresent" if image else None,
            env=_env(options.environment.env),
        ),
        agent=_agent(options.agent, options.agent_timeout_multiplier),
        verifier=_verifier(options.verifier, options.verifier_timeout_multiplier),
        timeoutMultiplier=options.timeout_multiplier,
        environmentTimeoutMultiplier=options.environment_build_timeout_multiplier,
        agentSetupTimeoutMultiplier=options.agent_setup_timeout_multiplier,
        artifacts=[_artifact(each) for each in options.artifacts],
        variables=_env(options.host_env),
        extraInstructions=list(extra_instructions),
        onAgentError="Continue",
        resumeTrajectory=options.agent.resume_trajectory or None,
    )


def _agent(agent: AgentOptions, multiplier: float | None) -> Manifest:
    command = COMMANDS[agent.import_path] if agent.import_path else None
    return _given(
        name="command" if command else agent.name or "oracle",
        command=list(command or ()),
        env=_env(agent.env),
        timeoutSeconds=agent.override_timeout_sec,
        maxTimeoutSeconds=agent.max_timeout_sec,
        timeoutMultiplier=multiplier,
        user=agent.user,
    )


def _verifier(verifier: VerifierOptions, multiplier: float | None) -> Manifest:
    return _given(
        disable=verifier.disable or None,
        env=_env(verifier.env),
        timeoutSeconds=verifier.override_timeout_sec,
        maxTimeoutSeconds=verifier.max_timeout_sec,
        timeoutMultiplier=multiplier,
    )


def _artifact(artifact: ArtifactOptions) -> Manifest:
    return _given(source=artifact.source, destination=artifact.destination, exclude=artifact.exclude)


def _env(values: Mapping[str, str]) -> list[Manifest]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _given(**fields: Any) -> Manifest:
    """Return the fields without those that are None or an empty list or dict; keep 0 and ""."""
    return {key: value for key, value in fields.items() if value is not None and value not in ([], {})}
