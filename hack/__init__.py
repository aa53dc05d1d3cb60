"""What the Makefile does: sets everything up, builds, deploys and checks. Standard library only, as nothing is installed yet.

cli         the targets, each a list of stages
stages      one line per stage with its seconds
python_env  .venv from locked packages       tools  Go, Helm, a C compiler
peers       programs of others, for tests
image       the operator's image             deployment  the chart in the cluster
generate    files generated from code; the only part that needs `.venv`
lanes       runs of pytest            outcomes  of their tests, flaky  those run again, history  of the last runs, report
checks      lint and tests                   trials  demo, run and the programs that need a deployed operator
"""
