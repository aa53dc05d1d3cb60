"""`multistep version`."""

from __future__ import annotations

from importlib import metadata

import click


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(f"multistep {metadata.version('multistep')}")
