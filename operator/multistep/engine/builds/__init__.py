"""Decides how the operator builds images in the cluster.

In: the answer of the registry, the state of the builder's pod, and the records of the pod's two runners. Out: the next action and
its commands. Open next_build_action.py first.

next_build_action    what a build does next, and its command lines
"""
