"""MultiStepTrial: its spec, its status, the tables of its failures, and the records of the runner in its pod.

In: an object of the API server; answers of the runner. Out: models, from which the CRD and pages of docs/reference are
generated. Open trial.py, then spec.py and status.py.

trial, spec, status                    the resource; conditions, score, regrade, egress_status, image_status: parts of its status
status_values, phases, agent_names     values without pydantic, so that the command line starts fast
task_source                            spec.task: bundle, inline, oci, git or url
agent_spec                             spec.agent; harbor_agents, harbor_options: the agents of Harbor and their options
pod_template_rules                     which fields spec.environment.podTemplate may have
failure_table, exception_table         each way in which a trial or a step fails: failure class, retry, remedy
agent_end_table, waiting_reasons       who is to blame for the end of an agent's step; why a trial waits
runner_records, content_references     the runner's answers and records; contents to upload
step_runs                              which attempt ran each step
"""
