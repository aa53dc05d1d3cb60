"""What the operator does next with a trial and its pods. The first rule that matches decides.

In: trial, observed pods, the current time. Out: a decision, such as CreatePod, Drive, FailAttempt, Fail or Wait. Open
next_decision.py first.

next_decision        the rules, in order
decisions            types of the observed state and of the decisions
deadlines            spec.stop, spec.activeDeadlineSeconds
suspensions          spec.suspend, scheduling gates, the limit of active trials of a model
pod_start            from the pod's creation until its container runs
service_failures     services that end or never become healthy
eviction_cause       whether the pod's own usage caused its eviction
killed_sessions      whether a process in the container ended an exec session
gateway_outages      whether the gateway or the provider is to blame for the end of an agent's phase
orphans              pods that no trial uses, results of deleted trials
"""
