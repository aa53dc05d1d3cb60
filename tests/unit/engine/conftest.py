from __future__ import annotations

from hypothesis import settings

settings.register_profile("steady", deadline=None)  # no time limit per example: a busy machine must not fail a test
settings.load_profile("steady")
