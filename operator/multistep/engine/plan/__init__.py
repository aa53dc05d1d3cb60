"""Makes the plan of a trial: every step's configuration with all inheritance, overrides and templates resolved.

In: task.toml, layout of the task's directory, services of its compose file, the trial's spec. Out: TrialPlan (plan.py), or an
InvalidTask or InvalidSpec error that names the problem. Open make_plan.py first.

make_plan               builds the plan and limits its size
plan                    types of the plan
task_steps              the task's steps, and which of them the trial runs
unsupported_parts       rejects tasks that need what the operator cannot do
resolve_templates       replaces ${NAME} in environment values
network_types           what each environment may reach
phase_networks          what each phase may reach
image_builds            images of the containers, and which of them the cluster must build
container_resources     CPU, memory, GPUs and TPUs of the containers
phase_timeouts          timeouts of the phases
plan_services           a compose file's services as containers, host names and volumes
uncounted_services      rejects services that call a model's provider
hosted_agent            plan of a Harbor agent
select_artifacts        which files of a step are collected
verifier_environment    where a step is verified
"""
