"""Fetches remote tasks in a child process, which confines the damage that hostile servers and repositories can do.

No module here imports the API models, so that the process starts in a tenth of a second.
"""
