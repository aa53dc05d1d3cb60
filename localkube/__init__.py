"""Run a real Kubernetes cluster on one Linux machine, without a container engine, for the demo and the tests."""
