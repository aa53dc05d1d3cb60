"""From rewards to the number that counts, and whose failure ended a trial.

In: Journal, files of the verifier, the gateway's report. Out: rewards, score, failure class, usage. Open trial_score.py first;
docs/reference/statistics.md has the rules as a table.

rewards           parses the verifier's files, evaluates gates, aggregates the trial's reward
trial_score       score of a trial
score_in_sweep    score with which a trial counts in a sweep (spec.scoring)
failure_class     failure class of a trial or an exception
usage_totals      tokens and cost, per step and in total; the model gateway's report
"""
