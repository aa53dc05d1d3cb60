"""Makes the plan of a trial: every step's configuration with all inheritance, overrides and templates resolved.

In: task.toml, layout of the task's directory, services of its compose file, the trial's spec. Out: TrialPlan (plan.py), or an
InvalidTask or InvalidSpec error that names the problem. Open make_plan.py first.

make_plan, plan                            builds the plan and limits its size; its types
task_steps                                 the steps of the task; those that the trial runs
unsupported_parts                          rejects tasks that need what the operator cannot do
resolve_templates                          ${NAME} in environment values
network_types, phase_networks              what each environment and phase may reach
image_builds                               images of the containers; those that the cluster must build
container_resources, phase_timeouts        CPU, memory, GPUs, TPUs; seconds of each phase
plan_services                              a compose file's services as containers, host names and volumes
hosted_agent, select_artifacts             an agent of Harbor; the artifacts of a step
verifier_environment                       where a step is verified
"""
