"""The plan of a trial: every step's configuration with all inheritance, overrides and templates resolved.

In: task.toml, layout, compose services, the trial's spec. Out: TrialPlan (plan.py), or InvalidTask with what is wrong. Open
make_plan.py first.

make_plan, plan                                builds the plan; its types
task_steps, selected_steps                     the steps of the task; those that the trial runs
check_service_names, unsupported_parts, limit_plan_size    reject a task
resolve_templates, template_variables          ${NAME} in environment values
network_types, phase_networks                  what each environment and phase may reach
container_images, image_builds                 images of the containers; those that the cluster must build
container_resources, phase_timeouts            CPU, memory, GPUs, TPUs; seconds of each phase
plan_services                                  a compose file's services as containers, host names and volumes
hosted_agent, select_artifacts                 an agent of Harbor; the artifacts of a step
verifier_environment, verdict_isolation        where a step is verified, and how well this is isolated from its agent
"""
