"""Conformance: run Harbor tasks on a real cluster and compare the outcomes with Harbor's.

``python -m tests.conformance DIR`` runs any directory of cases; ``cases/`` contains the project's own.
"""
