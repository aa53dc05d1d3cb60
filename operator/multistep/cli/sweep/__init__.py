"""`multistep sweep`: tasks x agents x attempts. Open commands.py first.

commands                         the options of the commands; manage/ has `list`, `retry`, `stop` and `delete`
run_sweep                        `run`: checks tasks, builds images, submits the sweep
sweep_view                       follows a sweep; what `run` and `status` print
sweep_report, report_excerpts    `report`, and the outputs of trials in it
compare                          `compare`
sweep_results                    `results`
"""
