"""Optional packages that only some commands need."""

from __future__ import annotations

from importlib.util import find_spec

from multistep.errors import UsageError

_REPORT = ("jinja2", "pyarrow", "scipy")


def require_report() -> None:
    """Raise UsageError unless the packages of the pip extra `report` are installed."""
    if missing := [each for each in _REPORT if find_spec(each) is None]:
        raise UsageError(
            f"this needs {' and '.join(missing)}, which Multistep's extra `report` brings: pip install 'multistep[report]', "
            "or in a checkout: pipx install --force '.[report]'"
        )
