"""Targets of the Makefile: set up, build, deploy and check. Standard library only, because it runs before any install.

cli         targets by name
stages      progress lines with the duration of each stage in seconds
python_env  .venv from locked packages       tools  Go, Helm, a C compiler
peers       third-party programs for tests
image       the operator's image             deployment  installation of the chart in the cluster
generate    files generated from code; the only part that needs `.venv`
lanes       parallel pytest runs             outcomes  results of tests
flaky       repetition of failed tests       history  results of the last runs       report  summary of a run
checks      lint and tests                   trials  targets demo, run, bench, chaos and conformance
"""
