"""Targets of the Makefile: set up, build, deploy and check. Standard library only, because it runs before any install.

cli         targets by name
stages      progress lines with the duration of each stage in seconds
python_env  .venv from locked packages       tools  Go, Helm, a C compiler
peers       third-party programs for tests
image       the operator's image             deployment  installation of the chart in the cluster
generate    files generated from code; the only part that needs `.venv`
lanes       parallel pytest runs    outcomes  test results    flaky  repeated tests    history  last runs    report  summary
checks      lint and tests                   trials  demo, run, and programs that need a deployed operator
"""
