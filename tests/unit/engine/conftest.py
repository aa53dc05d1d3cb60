from __future__ import annotations

from hypothesis import settings

settings.register_profile("steady", deadline=None)  # a test must not fail because the machine is busy
settings.load_profile("steady")
