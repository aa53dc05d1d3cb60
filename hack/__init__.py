"""The Makefile's targets, which set up, build, deploy and check. The package uses only the standard library, because it runs before
any install.

cli         targets by name
stages      progress lines with the duration of each stage in seconds
paths       paths and digests of files       load  busy cores and available memory
python_env  .venv from locked packages       tools  Go, kubectl, Helm, a C compiler
peers       third-party programs for tests
image       images of operator, agent host and builder        deployment  installation of the chart in the cluster
generate    files generated from code; the only part that needs `.venv`
checks      lint, unit tests                 end_to_end  end-to-end tests
lanes       parallel pytest runs             outcomes  results of tests, which the plugin pytest_outcomes writes
flaky       repetition of failed tests       history  results of the last runs       report  summary of a run
costs       seconds of CPU and of waiting
trials      targets demo, run, bench, chaos and conformance   agent_demo  make demo AGENT=...
"""
