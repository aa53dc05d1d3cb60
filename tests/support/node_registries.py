"""Let the nodes of localkube pull from a registry without TLS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from localkube.config import load_config


@contextmanager
def plain(host: str) -> Iterator[None]:
    """Let containerd pull from this registry without TLS in the context. containerd reads hosts.toml at each pull."""
    directory = load_config().paths.registries / host
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "hosts.toml"
    file.write_text(f'server = "http://{host}"\n')
    try:
        yield
    finally:
        file.unlink()
        directory.rmdir()
