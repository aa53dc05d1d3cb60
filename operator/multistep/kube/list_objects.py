"""Lists objects page by page, so that a list of any length needs little memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final

from multistep.errors import ClusterError
from multistep.kube.cluster_protocols import Object
from multistep.kube.requests import ApiRequests
from multistep.kube.resources import Resource

PAGE_OBJECTS: Final = 500
LISTS: Final = 4  # maximum attempts to read a list. An attempt fails if etcd compacts the list's version before the last page
GONE: Final = 410
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


@dataclass(frozen=True)
class Query:
    """The objects of a kind (of a namespace, if given) that match the selectors."""

    http: ApiRequests
    resource: Resource
    namespace: str | None
    label_selector: str = ""
    field_selector: str = ""
    accept: str = ""
    """Media type of lists, "" for JSON."""

    @property
    def selectors(self) -> dict[str, str]:
        named = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: value for name, value in named.items() if value}

    async def pages(self) -> AsyncGenerator[tuple[list[Object], str], None]:
        """Yield each page of the list as its objects, with apiVersion and kind, and the list's resourceVersion."""
        kind = {"apiVersion": self.resource.api_version, "kind": self.resource.kind}
        params, more = {**self.selectors, "limit": str(PAGE_OBJECTS)}, True
        while more:
            page = await self.http.read("list", self.resource, self.resource.path(self.namespace), params, accept=self.accept)
            params["continue"] = more = page["metadata"].get("continue", "")
            objects = [{**kind, **item} for item in page["items"] or []]  # items is null in an empty PartialObjectMetadataList
            yield objects, page["metadata"]["resourceVersion"]

    async def all(self, part: Callable[[Object], Object] = lambda whole: whole) -> tuple[list[Object], str]:
        """Return all objects, reduced to what ``part`` returns, and the list's resourceVersion. Only one page of whole objects is
        in memory at a time."""
        for attempt in range(1, LISTS + 1):
            try:
                parts: list[Object] = []
                latest = ""
                async for objects, version in self.pages():
                    parts += map(part, objects)
                    latest = version
                return parts, latest
            except ClusterError as error:
                if error.status != GONE or attempt == LISTS:
                    raise
        raise AssertionError("unreachable")
