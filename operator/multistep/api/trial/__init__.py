"""Models of MultiStepTrial: its spec, its status, the tables of its failures, and the records of the runner in its pod.

In: objects of the API server, answers of the runner. Out: models, from which the CRD and pages of docs/reference are generated.
Open trial.py, then spec.py and status.py.

trial                     the resource
spec                      its spec
status                    its status: conditions, images, and the steps of each attempt
status_journal            which fields of a status are stored in status.journal, and how
score                     the rule for the score in a status
regrade                   trials that verify another trial's steps again
values                    values without pydantic, so that the command line starts fast
task_source               spec.task, the source of the task
agent_spec                spec.agent
harbor_agents             the agents that Harbor has
failure_table             every way in which a trial or a step fails, with failure class, retry and remedy
agent_end_table           who is to blame for the end of an agent's step
waiting_reasons           why a trial waits
runner_records            the runner's answers and records
content_references        contents of the task to upload
"""
