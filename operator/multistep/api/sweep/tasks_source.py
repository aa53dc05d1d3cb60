"""The models of spec.tasksFrom, the source of a sweep's tasks: an image, a git repository, a URL or a dataset."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from multistep.api.common.base_model import Model, Name, cel
from multistep.api.task.allowed_names import has_credentials
from multistep.api.trial.task_source import GitSource, OCISource, SecretReference, URLSource

_NOT_IN_A_HUB = (
    "name must have no '/': ORG/NAME is in Harbor's hosted hub, from which Multistep does not read; "
    "run `harbor download ORG/NAME`, then `multistep sweep run` with the downloaded directory"
)
_NO_VERSION_IN_NAME = "name must have no '@': set the field version instead"
_NO_CREDENTIALS = "registry must not contain credentials: put them into a Secret and name it in secretRef"
_Pattern = Annotated[str, Field(min_length=1, max_length=253)]


class DatasetSource(Model):
    """A dataset of a registry.json, Harbor's list of datasets. Its tasks are directories of git repositories."""

    model_config = cel(
        ("!self.registry.matches('^[a-z0-9]+://[^/]*@')", _NO_CREDENTIALS),
        ("!self.name.contains('/')", _NOT_IN_A_HUB),
        ("!self.name.contains('@')", _NO_VERSION_IN_NAME),
    )

    registry: Annotated[str, Field(pattern=r"^https?://", max_length=2048)]
    """URL of the registry.json, https:// or http://."""
    name: Name
    """Name of the dataset."""
    version: Name | None = None
    """Version of the dataset. If unset, it is the version `head`, or the highest version if the dataset has no `head`."""
    include: Annotated[list[_Pattern], Field(max_length=256)] = []
    """Patterns (*, ?, [...]) of the names of the tasks to include. Empty means all tasks. A task's name is its directory's name."""
    exclude: Annotated[list[_Pattern], Field(max_length=256)] = []
    """Patterns of the names of the tasks to exclude."""
    limit: Annotated[int, Field(ge=1, le=50_000)] | None = None
    """Maximum number of tasks. The first ones that include and exclude select are used."""
    secret_ref: SecretReference | None = None
    """A Secret with username and password, or token, and optionally ca.crt, for the registry and for repositories on its server."""

    @model_validator(mode="after")
    def _named_here(self) -> Self:
        if has_credentials(self.registry):
            raise ValueError(_NO_CREDENTIALS)
        if "/" in self.name:
            raise ValueError(_NOT_IN_A_HUB)
        if "@" in self.name:
            raise ValueError(_NO_VERSION_IN_NAME)
        return self


_SOURCES = ("oci", "git", "url", "dataset")
_ONE_SOURCE = "must have exactly one of oci, git, url and dataset"


class TasksSource(Model):
    """Source of many tasks: exactly one of oci, git, url and dataset. Each directory with a task.toml directly under the path of
    oci, git or url is a task."""

    model_config = cel((f"[{', '.join(f'has(self.{each})' for each in _SOURCES)}].filter(x, x).size() == 1", _ONE_SOURCE))

    oci: OCISource | None = None
    """An image, in which path is the parent of the task directories."""
    git: GitSource | None = None
    """A git repository, in which path is the parent of the task directories."""
    url: URLSource | None = None
    """A tar.gz, in which path is the parent of the task directories."""
    dataset: DatasetSource | None = None
    """A dataset of a registry.json."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if sum(getattr(self, each) is not None for each in _SOURCES) != 1:
            raise ValueError(_ONE_SOURCE)
        return self
