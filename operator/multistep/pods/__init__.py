"""The pods of a trial as manifests and facts. Pure functions on dicts in the API server's format.

In: plan, settings; a pod object. Out: manifests; facts for engine.lifecycle. Open pod_manifest.py first.

pod_manifest              the pods of a trial and of its verifiers; NetworkPolicy and PodDisruptionBudget
agent_host                sidecar that runs an agent of Harbor; the agent's program in the environment
service_containers        services of a compose file as native sidecars
egress_sidecar            control of egress
runner_mount              the runner in each container
builder_pod               the pod that builds an image
kueue                     labels that queue a pod with Kueue
pod_identity              names, labels, owners
pod_facts                 what a pod's status says; container_statuses: of its containers and services
"""
