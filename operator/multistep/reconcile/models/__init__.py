"""Access of a trial's agent, judge and simulated user to their models, through the model gateway.

In: a trial and its plan. Out: tokens for the phases of a step, and the usage that the gateway recorded.

model_gateway    opens and closes access at the gateway, and reads its records
judge_doubt      whether the judge's provider or a process of the trial is why the judge got no answer
"""
