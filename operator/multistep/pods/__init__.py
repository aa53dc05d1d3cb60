"""Builds the manifests of a trial's pods, and reads facts from pod objects. All functions are pure.

In: plan, settings, a pod object. Out: manifests as dicts in the API server's format, facts for engine.lifecycle. Open
pod_manifest.py first.

pod_manifest              the pods of a trial and its verifiers, with NetworkPolicy and PodDisruptionBudget
agent_host                the sidecar that runs an agent of Harbor, and the agent's program in the environment
service_containers        services of a compose file as native sidecars
egress_sidecar            the sidecar that controls a pod's egress
runner_mount              the runner in each container
builder_pod               the pod that builds an image
kueue                     labels that queue a pod with Kueue
pod_identity              names, labels, owners
pod_facts                 facts from a pod object
container_statuses        facts from the statuses of containers and services
"""
