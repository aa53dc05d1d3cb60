"""`multistep package`: prints the manifests of a trial, and pushes the task with --to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from multistep.cli.groups import TrialCommand
from multistep.cli.options import image_options, namespace_option, task_argument, trial_options

_EPILOG = """\b
Examples:
  multistep package my-task --agent oracle | kubectl apply -f -
  multistep package my-task --image registry.example/me/my-task:1 --name my-task-1 > trial.yaml
  multistep package my-task --agent command -- ./agent.sh --fast | kubectl apply -f -
  multistep package my-task --to oci://registry.example/tasks/my-task:1 --source-secret registry | kubectl apply -f -
  multistep package my-task --to s3://my-bucket/tasks --source-secret my-bucket > trial.yaml

The task's files are stored in immutable ConfigMaps, which many trials of the same task may share. The ConfigMaps have no
owner: they and the trials have the label multistep.dev/bundle=DIGEST. To delete all of them:

\b
  kubectl delete multisteptrial,configmap -l multistep.dev/bundle=DIGEST

The objects that `multistep run` creates are deleted with their trial.

With --to the files are pushed to a registry or bucket instead, and the trial names them by digest; existing content is not
sent again. Credentials are those of `docker login`, and the variables AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION,
AWS_ENDPOINT_URL (with AWS_ALLOW_HTTP=true where that is http://); the operator's are in the Secret of --source-secret.

This command checks only that TASK has a task.toml; `multistep check` and the operator validate the task. A task that has a
Dockerfile and no image gets the image name that `multistep build` gives it: build first.
"""


@click.command(cls=TrialCommand, epilog=_EPILOG)
@task_argument
@namespace_option
@image_options
@click.option("--to", metavar="URL", help="Push the task to oci://HOST/REPOSITORY[:TAG] or s3://BUCKET/PREFIX.")
@click.option("--source-secret", metavar="SECRET", help="With --to: the Secret with which the operator fetches the task.")
@click.option("--plain-http", is_flag=True, help="With --to oci://: the registry has no TLS.")
@trial_options
def package(
    task: Path,
    namespace: str | None,
    image: str | None,
    runner_in_image: bool,
    to: str | None,
    source_secret: str | None,
    plain_http: bool,
    **options: Any,
) -> None:
    """Write the manifests of a trial of the task in directory TASK to stdout."""
    from multistep.api.trial.trial import parse_trial
    from multistep.cli.image.images import existing_image
    from multistep.cli.terminal import print_err, print_text
    from multistep.client.submit.manifests import to_yaml
    from multistep.client.submit.trial_manifest import TrialOptions, trial_submission
    from multistep.client.submit.values import Values
    from multistep.client.task.task_directory import TaskDirectory
    from multistep.errors import UsageError

    if (source_secret or plain_http) and not to:
        raise UsageError("--source-secret and --plain-http are for --to")

    directory = TaskDirectory.open(task)
    if directory.toml_error:
        print_err(f"warning: {directory.toml_error}; packaged as it is")
    chosen = existing_image(directory, image, runner_in_image=runner_in_image)
    if chosen is not None and image is None:
        print_err(f"the trial expects image {chosen.reference}, which `multistep build {task}` builds")
    submission = trial_submission(directory, TrialOptions(**options), Values(), image=chosen, shared=True)
    if to:
        from multistep.cli.task.publish import publish

        published = publish(directory, to, plain_http=plain_http, secret=source_secret)
        print_err(f"{'pushed' if published.sent else 'exists already:'} {published.place}")
        submission = trial_submission(directory, TrialOptions(**options), Values(), image=chosen, source=published.source)
    parse_trial(submission.main)
    if namespace:
        submission = submission.placed(namespace)
    print_text(to_yaml([*submission.owned, submission.main]))
