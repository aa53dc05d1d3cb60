"""What the operator does next with a trial and its pods. The first rule that matches decides.

In: trial, observed pods, the current time. Out: a decision, such as CreatePod, Drive, FailAttempt, Fail or Wait. Open
next_decision.py first.

next_decision       the rules, in order
decisions           types of the observed state and of the decisions
stop_and_suspend    spec.stop, spec.activeDeadlineSeconds, spec.suspend, scheduling gates, models' slots
pod_start           from the pod's creation until its container runs
failure_causes      services that end, evictions, the gateway
clean_up            when a finished trial and its pods are deleted
orphans             pods that no trial uses, results of deleted trials
"""
