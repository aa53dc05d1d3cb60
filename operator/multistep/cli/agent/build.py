"""`multistep agent build`: builds the image of an agent's program, and pushes or loads it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from multistep.cli.agent.programs import Program, files_of, image_name, program_of
from multistep.cli.image.engines import Engine, execute
from multistep.cli.image.images import check_pushable, choose_engine, deliver_image
from multistep.cli.image.kubeconfig import current_cluster
from multistep.cli.terminal import working


@dataclass(frozen=True)
class AgentBuild:
    """The build of the image of an agent's program. image: name of the image; push: push the image to its registry instead of
    loading it into the cluster."""

    agent: str
    program: Program
    image: str
    push: bool

    @classmethod
    def of(cls, text: str, tag: str | None, *, push: bool) -> Self:
        """Return the build for ``text``, which is ``AGENT[@VERSION]``. Raises UsageError if no image can be built of this agent, or
        if the image cannot be pushed."""
        agent, program = program_of(text)
        image = tag or image_name(agent, program)
        if push:
            check_pushable(image)
        return cls(agent, program, image, push)

    def run(self, kubeconfig: str | None, context: str | None, *, verbose: bool) -> dict[str, Any]:
        """Build the image, and push or load it; return the document that -o json prints. Raises UsageError if the build, push or
        load fails."""
        cluster = current_cluster(kubeconfig, context)
        engine = choose_engine(cluster)
        self._build(engine, verbose=verbose)
        loaded = deliver_image(self.image, engine, cluster, push=self.push, verbose=verbose)
        names = {"agent": self.agent, "version": self.program.version, "image": self.image}
        return {**names, "pushed": self.push, "loaded": loaded, "engine": engine.name}

    def _build(self, engine: Engine, *, verbose: bool) -> None:
        with tempfile.TemporaryDirectory(prefix="multistep-") as directory:
            context = Path(directory)
            for name, text in files_of(self.program).items():
                (context / name).write_text(text)
            with working(f"building {self.image} with {engine.name}"):
                execute(engine.build(self.image, context, context / "Dockerfile"), verbose=verbose)
