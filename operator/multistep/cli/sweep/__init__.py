"""`multistep sweep`: tasks x agents x attempts. Open commands.py first.

commands, manage                                options of `run`, `status`, `report`, ...; `list`, `retry`, `stop`, `delete`
run_sweep, sweep_manifest                       `run`: checks, builds, submits; the TrialSweep and the objects that it needs
follow_sweep, sweep_view, excluded_trials       progress until the end
owned_trials, sweep_rows, retry                 trials of a sweep: as objects, as rows; retries
sweep_report, branch_tables, report_excerpts    `report`
compare                                         `compare`
sweep_results, job_directory                    `results`: Harbor's job directory
"""
