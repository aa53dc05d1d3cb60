# On a fresh Debian 12, as root, each of these does all the set-up it needs; docs/internals/development.md lists it.
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Read by hack/: which cluster (auto, local, kind, current), where the image is pushed to, the cases of `conformance`, and by
# `bench`: the program `harbor` of another Python. `demo` reads AGENT, `test-long` LONG.
export CLUSTER IMAGE_REPOSITORY CASES SECTIONS BENCH_TRIALS HARBOR AGENT LONG

TARGETS := setup lock demo test test-long test-agents lint unit e2e generate cluster cluster-down image deploy run bench chaos conformance
.PHONY: help test-all $(TARGETS)

demo:         ## from nothing to a finished trial: cluster, image, operator, an example task [AGENT=claude-code]
test:         ## lint, unit tests, end-to-end tests on a real cluster
test-long:    ## the tests that take so long that `test` leaves them out [LONG=1/3: a third of them]
test-agents:  ## the end-to-end tests of more agents, whose images take minutes to build
test-all: test test-long  ## all tests: test, then test-long
cluster:      ## start the cluster or use the one that runs; prints `export KUBECONFIG=...`
cluster-down: ## stop the cluster and remove it
image:        ## build the images of the operator and the agent host if they changed; prints their names
deploy:       ## cluster, image, and the operator in it, installed by the chart
run:          ## the operator on this machine instead of in the cluster, for development
bench:        ## measure throughput and latency
chaos:        ## trials while things break
conformance:  ## run a directory of cases and compare: make conformance CASES=DIR
lint:         ## ruff, mypy, lint-imports, gofmt, go vet, CRD, chart
unit:         ## tests that need no cluster
e2e:          ## deploy, then the end-to-end tests
generate:     ## write the CRDs, the reference tables in docs/ and the chart's schema from the code
setup:        ## only the Python environment .venv
lock:         ## pin the newest versions that pyproject.toml allows

$(TARGETS):
	@hack/dev $@

help:         ## this
	@sed -n 's/^\([a-z0-9-]*\):[a-z -]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16
