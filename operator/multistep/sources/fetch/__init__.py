"""Fetching a task from elsewhere, in a process of its own: what hostile servers and repositories do stays in there.

Nothing of this imports the API models: the process starts in a tenth of a second.
"""
