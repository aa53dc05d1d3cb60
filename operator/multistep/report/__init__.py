"""Reports of sweeps: statistics with confidence intervals, as an HTML page, a table or files.

In: trials of sweeps. Out: data (summary.py), HTML, JSON, CSV, Parquet. The operator uses rows.py and history_row.py only;
statistics.py needs the extra `report` or `history`. Open summary.py first.

rows          trials and their steps as rows, how a score was computed
pass_at_k     pass@k and mean scores by task, without an interval
summary       leaderboard, steps, durations, failures; report_warnings: why means may be invalid
statistics    means, pass@k, differences with intervals
branches      branches of a sweep
agreement     agreement of the verdicts of two judges
excerpts      ends of outputs and failing tests
stream_json   lines of Claude Code's JSON as text
html_page     HTML page; cost_picture: its picture of score against cost
files         JSON, CSV, Parquet
history_row   rows of the history; history_database: their local copy, history_questions, history_postgres
"""
