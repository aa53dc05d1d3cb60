"""Builds of images in the cluster.

In: answer of the registry, the builder's pod, records of its two runners. Out: the next action, commands. Open
next_build_action.py first.

next_build_action    what a build does next, and its command lines
"""
