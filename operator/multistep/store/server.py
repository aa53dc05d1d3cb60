"""Serves results over HTTP: one tar stream per trial, for whoever can show its token (which the trial's status tells)."""

from __future__ import annotations

from aiohttp import web

from .volume import Volume


def add_routes(app: web.Application, volume: Volume) -> None:
    """Mount ``GET /results/NAMESPACE/NAME/UID/TOKEN``."""
    raise NotImplementedError
