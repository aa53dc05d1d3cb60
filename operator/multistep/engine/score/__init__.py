"""Computes a trial's score from its rewards, and the class of the failure that ended it.

In: the Journal, the verifier's reward files, the model gateway's report. Out: rewards, score, failure class, usage. Open
trial_score.py first. docs/reference/statistics.md has the rules as a table.

rewards           parses the verifier's files, evaluates gates, aggregates the trial's reward
trial_score       score of a trial
score_in_sweep    score with which a trial counts in a sweep (spec.scoring)
failure_class     failure class of a trial or an exception
usage_totals      tokens and cost per step and in total, the model gateway's report
"""
