"""The documents that users and programs write: task.toml, compose services, MultiStepTrial, TrialSweep, the runner's records.

In: YAML, TOML or JSON that was parsed to dicts. Out: pydantic models and dataclasses whose fields are valid, or the list of all
problems. The package imports no others of multistep but errors and providers. Open trial/trial.py first.

common/    base model of all documents, labels, messages about problems
task/      task.toml, the services of a compose file, the layout of a task's directory
trial/     MultiStepTrial: spec, status, tables of failures, and the records that the runner keeps
sweep/     TrialSweep
"""
