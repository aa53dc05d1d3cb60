"""Reports of sweeps: statistics with confidence intervals, as an HTML page, a table or files.

In: trials of sweeps. Out: data (summary.py), HTML, JSON, CSV, Parquet. Only the command line uses this package; statistics.py
needs the extra `report`. Open summary.py first.

rows, step_row               trials and their steps as rows
summary                      leaderboard, steps, durations, failures
statistics, by_task          means, pass@k, differences with intervals; means by task without intervals
branches                     branches of a sweep
warnings, explanation        doubts about means; how a score was computed
excerpts, stream_json        ends of outputs and failing tests; Claude Code's JSON as text
page, cost_picture, files    HTML page, its picture of score against cost; JSON, CSV, Parquet
"""
