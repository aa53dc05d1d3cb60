"""Refuses services that call a model's provider, such as a simulated user in a compose file. Their requests pass no model gateway,
so they would count for no role of the trial and for no budget."""

from __future__ import annotations

from collections.abc import Mapping

from multistep.api.task.layout import MAIN, Services
from multistep.errors import UncountedModel
from multistep.providers import PROVIDERS, Provider, judge_variables


def refuse_uncounted(services: Services) -> None:
    """Raise UncountedModel for a service that has a provider's key, unless it names another server than the provider's. services:
    with the values of their variables."""
    for service in services.services:
        if service.name == MAIN:
            continue
        for provider in PROVIDERS:
            if variable := _key(provider, service.environment):
                place = f"{services.path}:{service.line}: services.{service.name}.environment.{variable}"
                raise UncountedModel(
                    f"{place}: the requests of a service to {provider.host} pass no model gateway, so they would count for no role "
                    f"of the trial: let spec.models.user play a user, or set {provider.url_variables[0]} there to another server"
                )


def _key(provider: Provider, environment: Mapping[str, str]) -> str:
    """Return the variable with a key of the provider, "" if there is none, or if another server is named for it."""
    names = judge_variables(provider.key_variables[0])
    urls = [environment[name] for name, is_key in names.items() if not is_key and environment.get(name)]
    if any(provider.host not in url for url in urls):
        return ""
    return next((name for name, is_key in names.items() if is_key and environment.get(name)), "")
