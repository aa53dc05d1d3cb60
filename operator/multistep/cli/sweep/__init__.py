"""`multistep sweep`: tasks x agents x attempts. Open commands.py first.

commands, manage              options of `run`, `status`, `report`, ...; `list`, `retry`, `stop`, `delete`
run_sweep                     `run`: checks, builds, submits
sweep_view                    progress until the end
sweep_report, report_excerpts    `report`; trials as rows
compare                       `compare`
sweep_results                 `results`
"""
