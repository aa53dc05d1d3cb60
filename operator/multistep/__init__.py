"""Multistep: a Kubernetes operator that runs multi-step agent evaluation trials."""

__version__ = "0.1.0"
