"""MultiStepTrial: its spec, its status, the tables of its failures, and the records of the runner in its pod.

In: an object of the API server; answers of the runner. Out: models, from which the CRD and pages of docs/reference are
generated. Open trial.py, then spec.py and status.py.

trial, spec, status       the resource; what may be set, and where; conditions, images and steps of each attempt
status_journal            which fields of a status are in status.journal, and how
score, regrade            score in a status; trials that verify another trial's steps again
values                    values without pydantic, so that the command line starts fast
task_source               spec.task: bundle, inline, oci, git or url
agent_spec                spec.agent; options of Harbor's agents; harbor_agents: which agents Harbor has
failure_table             each way in which a trial or a step fails: failure class, retry, remedy
agent_end_table           who is to blame for the end of an agent's step
waiting_reasons           why a trial waits
runner_records            the runner's answers and records; content_references: contents to upload
"""
