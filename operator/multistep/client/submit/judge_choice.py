"""Sets spec.models.judge from the option --judge and the other options of a judge."""

from __future__ import annotations

from collections.abc import Iterable

from multistep.client.options import JudgeOptions
from multistep.client.submit.agent_choice import credential
from multistep.client.submit.manifests import Manifest, optional
from multistep.errors import UsageError
from multistep.providers import provider_of


def with_judge(spec: Manifest, options: JudgeOptions, *, alone: bool = False) -> Manifest:
    """Return a trial's spec with the judge of the options, and with its model in the variables of --judge-model-env.

    A judge that the spec has is replaced; its key and the rest stay, unless an option replaces them. alone: whether the tests may
    ask no other model. Raises UsageError if the options lack the model or its provider's key.
    """
    if not options.given:
        return spec
    if options.model is None:
        raise UsageError("the options of a judge need its model: --judge PROVIDER/NAME, such as openai/gpt-5-mini")
    models = spec.get("models") or {}
    named = _with_model_env(spec, options) if options.model_env else spec
    judge = {**_judge(models.get("judge") or {}, options), **optional(otherModels="Refuse" if alone else None)}
    return {**named, "models": {**models, "judge": judge}}


def without_judge(override: Manifest, options: JudgeOptions) -> Manifest:
    """Return the spec of a sweep's override, so that the judge of the options, which the template has, applies to its trials."""
    if not options.given:
        return override
    kept = {name: value for name, value in override.items() if name != "models"}
    return _with_model_env(kept, options) if "env" in (kept.get("verifier") or {}) else kept


def _with_model_env(spec: Manifest, options: JudgeOptions) -> Manifest:
    verifier = spec.get("verifier") or {}
    env = [each for each in verifier.get("env", ()) if each["name"] not in options.model_env]
    named = [{"name": each, "value": options.model} for each in options.model_env]
    return {**spec, "verifier": {**verifier, "env": [*env, *named]}}


def _judge(former: Manifest, options: JudgeOptions) -> Manifest:
    """Return spec.models.judge. former: the judge to replace, {} without one."""
    if options.keys:
        keys = [credential(each, options.model, "--judge-key-from-secret") for each in options.keys]
        former = {name: value for name, value in former.items() if name != "baseURL"}  # it is that of the former keys' provider
    else:
        keys = former.get("credentials", [])
        _check_has_key(options.model, [each["name"] for each in keys])
    limits = None if options.max_cost is None else {"costUSD": options.max_cost}
    return {**former, "model": options.model, "credentials": keys, **optional(baseURL=options.base_url, limits=limits)}


def _check_has_key(model: str | None, names: Iterable[str]) -> None:
    """Raise UsageError if none of these variables may hold a key of the model's provider."""
    known = provider_of(model)
    if not any(known is None or name in known.key_variables for name in names):
        raise UsageError(f"--judge {model} needs its provider's key: --judge-key-from-secret SECRET:KEY")
