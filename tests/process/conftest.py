"""Run the operator in the test's process, with pods that are processes of this machine. Needs root on Linux."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hack import image
from tests.conformance.images import environment_digest
from tests.support.image_trees import ImageTree, image_tree, named_image_tree
from tests.support.process_world import Trials, fresh, process_world


@pytest.fixture
async def given() -> AsyncIterator[Trials]:
    """Yield helpers for an operator and a cluster of the test's own."""
    with fresh() as directory:
        async with process_world(directory, image.ensure_runner(), _image) as trials:
            yield trials


def _image(name: str) -> ImageTree:
    """Return the image of this name, or the image of the Dockerfile in the directory of this name."""
    return image_tree(Path(name), environment_digest(Path(name))) if Path(name).is_absolute() else named_image_tree(name)
