"""Fetches remote tasks in a child process, which limits the damage that hostile servers and repositories can do.

No module in this package imports the API models, so that the process starts in a tenth of a second.
"""
