"""The models of spec.task, the source of a trial's task: ConfigMaps, the trial itself, an image, a git repository or a URL."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from multistep.api.common.base_model import Model, Name, ObjectName, cel
from multistep.api.task import allowed_names


class BundleSource(Model):
    """A task packed into ConfigMaps, as `multistep package` prints it."""

    config_maps: Annotated[list[ObjectName], Field(min_length=1, max_length=256)]
    """The immutable ConfigMaps with the parts of the bundle, in order."""
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    """Digest of the whole bundle, as sha256: and 64 hexadecimal digits."""


class InlineSource(Model):
    """A small task inside the trial itself."""

    config: dict[str, Any]
    """Content of task.toml, as an object."""
    files: Annotated[dict[str, str], Field(max_length=1024)] = {}
    """Text files by path in the task directory. Files whose names end in .sh are executable."""


class SecretReference(Model):
    """A Secret in the trial's namespace."""

    name: ObjectName
    """Name of the Secret."""


class OCISource(Model):
    """A task in a registry, which `multistep package --to oci://...` pushed, or which is a directory in any image."""

    image: Annotated[str, Field(min_length=1, max_length=1024)]
    """HOST/REPOSITORY:TAG or HOST/REPOSITORY@sha256:DIGEST. A tag is resolved once, when the trial starts."""
    path: Annotated[str, AfterValidator(allowed_names.path_in_source), Field(max_length=4096)] = ""
    """Directory of the task in an ordinary image. Defaults to the root."""
    secret_ref: SecretReference | None = None
    """A Secret of type kubernetes.io/dockerconfigjson."""


_NO_CREDENTIALS = "must not contain credentials: put them into a Secret and name it in secretRef"


class _AtURL(Model):
    """A source with a URL that contains no credentials."""

    model_config = cel(("!self.url.matches('^[a-z0-9]+://[^/]*@')", f"url {_NO_CREDENTIALS}"))

    url: str

    @model_validator(mode="after")
    def _without_credentials(self) -> Self:
        if allowed_names.has_credentials(self.url):
            raise ValueError(f"url {_NO_CREDENTIALS}")
        return self


class GitSource(_AtURL):
    """A task in a git repository, without submodules and Git LFS."""

    url: Annotated[str, Field(pattern=r"^https?://", max_length=2048)]
    """URL of the repository, https:// or http://."""
    ref: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """A branch, tag, commit (40 digits) or refs/..., which is resolved once, when the trial starts. Defaults to the repository's
    default branch."""
    path: Annotated[str, AfterValidator(allowed_names.path_in_source), Field(max_length=4096)] = ""
    """Directory of the task in the repository. Defaults to the root."""
    secret_ref: SecretReference | None = None
    """A Secret of type kubernetes.io/basic-auth, or with the key token. The key ca.crt is optional."""


class URLSource(_AtURL):
    """A packed task at a URL."""

    url: Annotated[str, Field(pattern=r"^(https?|s3|gs)://", max_length=2048)]
    """URL of the file: https://..., http://..., s3://BUCKET/KEY or gs://BUCKET/KEY."""
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    """Digest of the tar.gz file, as sha256: and 64 hexadecimal digits."""
    path: Annotated[str, AfterValidator(allowed_names.path_in_source), Field(max_length=4096)] = ""
    """Directory of the task in the archive. Defaults to the root."""
    secret_ref: SecretReference | None = None
    """A Secret with credentials, such as username and password, a token, or AWS_ACCESS_KEY_ID. docs/how-to/task-sources.md lists
    the keys."""


_SOURCES = ("bundle", "inline", "oci", "git", "url")
_ONE_SOURCE = f"must have exactly one of {', '.join(_SOURCES[:-1])} and {_SOURCES[-1]}"


class TaskSource(Model):
    """Source of the task: exactly one of bundle, inline, oci, git and url."""

    model_config = cel((f"[{', '.join(f'has(self.{each})' for each in _SOURCES)}].filter(x, x).size() == 1", _ONE_SOURCE))

    name: Name | None = None
    """Name of the task if its config has no task.name. `multistep package` sets it to the directory's name."""
    bundle: BundleSource | None = None
    """A task packed into ConfigMaps."""
    inline: InlineSource | None = None
    """A task inside this resource."""
    oci: OCISource | None = None
    """A task in a registry."""
    git: GitSource | None = None
    """A task in a git repository."""
    url: URLSource | None = None
    """A task at a URL."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if sum(getattr(self, each) is not None for each in _SOURCES) != 1:
            raise ValueError(_ONE_SOURCE)
        return self

    @property
    def kind(self) -> str:
        """Return the name of the source that is set."""
        return next(each for each in _SOURCES if getattr(self, each) is not None)

    @property
    def remote(self) -> bool:
        """Return whether the task is fetched from outside the cluster."""
        return self.bundle is None and self.inline is None

    @property
    def secret_ref(self) -> SecretReference | None:
        """Return the reference to the Secret with credentials, if there is one."""
        source = self.oci or self.git or self.url
        return source.secret_ref if source else None


class TaskSourceStatus(Model):
    """Resolved source of a task, which is the same for all attempts."""

    revision: str
    """Commit of the git repository, or digest of the image manifest or of the archive."""
    digest: str
    """Digest of the unpacked task."""
