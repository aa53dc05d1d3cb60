"""`multistep build`: builds the image of a task's environment, and pushes it or loads it into the cluster."""

from __future__ import annotations

from pathlib import Path

import click

from multistep.cli.options import kubeconfig_options, output_option, task_argument, verbose_option

_EPILOG = """\b
Examples:
  multistep build my-task
  multistep build my-task -t registry.example/me/my-task:1 --push

The first of docker, podman and buildah that works builds the image. Without --push the image is loaded into the cluster of
the current context if that is localkube or kind. If a runner binary is found ($MULTISTEP_RUNNER, or with this program), it
becomes the image's last layer, and trials in it need no init container. The default name is localhost/multistep/TASK:DIGEST, where
the digest is that of environment/ and the runner: `multistep package` and `multistep run` use the same.
"""


@click.command(epilog=_EPILOG)
@task_argument
@click.option("-t", "--tag", metavar="IMAGE", help="Name of the image; default: localhost/multistep/TASK:DIGEST.")
@click.option("--push", is_flag=True, help="Push it to the registry in its name.")
@kubeconfig_options
@verbose_option
@output_option
def build(task: Path, tag: str | None, push: bool, kubeconfig: str | None, context: str | None, verbose: bool, output: str) -> None:
    """Build the image of environment/Dockerfile in directory TASK."""
    from multistep.cli.image.images import build_image, check_pushable, choose_engine, deliver_image, plan_build
    from multistep.cli.terminal import print_json, print_line
    from multistep.client.kubeconfig import current_cluster
    from multistep.client.task.task_directory import TaskDirectory

    planned = plan_build(TaskDirectory.open(task), tag)
    if push:
        check_pushable(planned.name)
    cluster = current_cluster(kubeconfig, context)
    engine = choose_engine(cluster)
    build_image(planned, engine, verbose=verbose)
    loaded = deliver_image(planned.name, engine, cluster, push=push, verbose=verbose)
    if output == "json":
        runner = planned.image.runner
        print_json({"image": planned.name, "runnerInImage": runner, "pushed": push, "loaded": loaded, "engine": engine.name})
        return
    print_line(planned.name)
    _explain(runner=planned.image.runner)


def _explain(*, runner: bool) -> None:
    """Print the options with which other commands must use this image."""
    from multistep.cli.terminal import print_err

    if runner:
        print_err("the runner is in the image: set spec.environment.runnerInImage: true, or --runner-in-image beside --image")
    else:
        print_err("the runner is not in the image, as no runner binary was found here: an init container will copy it")
