"""`multistep version`."""

from __future__ import annotations

import click

from multistep import __version__


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(f"multistep {__version__}")
