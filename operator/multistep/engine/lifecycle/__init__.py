"""Decides what the operator does next with a trial and its pods. The first rule that matches decides.

In: trial, observed pods, the current time. Out: a decision, such as CreatePod, Drive, FailAttempt, Fail or Wait. Open
next_decision.py first.

next_decision       the rules, in order
decisions           types of the observed state and of the decisions
stop_and_suspend    what stops or suspends a trial: fields of its spec, scheduling gates, limits per model
pod_start           rules from the pod's creation until its container runs
retry_by_spec       another attempt after an exception of a step (spec.scoring.overrideErrorPolicy)
failure_causes      failures that services, evictions or the model gateway cause
clean_up            when a finished trial and its pods are deleted, which pods and results are orphans
"""
