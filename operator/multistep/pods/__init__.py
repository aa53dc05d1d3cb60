"""The pods of a trial as manifests and facts. Pure functions on dicts in the API server's format.

In: plan, settings; a pod object. Out: manifests; facts for engine.lifecycle. Open pod_manifest.py first.

pod_manifest                           the pods of a trial and of its verifiers
agent_host, agent_program              sidecar that runs an agent of Harbor; the agent's program in the environment
service_containers                     services of a compose file as native sidecars
egress_sidecar, pod_policies           control of egress; NetworkPolicy and PodDisruptionBudget
runner_mount, container_image          the runner in each container; the image of a container
builder_pod                            the pod that builds an image
kueue                                  labels that queue a pod with Kueue
pod_identity                           names, labels, owners
pod_facts, container_statuses, service_statuses    what a pod's status says
"""
