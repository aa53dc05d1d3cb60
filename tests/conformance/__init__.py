"""Conformance: directories of Harbor tasks with what Harbor made of them, run on a real cluster and compared.

``python -m tests.conformance DIR`` runs any such directory; ``cases/`` holds the project's own.
"""
