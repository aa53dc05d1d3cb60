"""`multistep dataset`: the datasets of a registry.json, Harbor's list of datasets.

commands    options
registry    reads a registry.json from a URL or a file
tables      output of `list` and `show`
tasks       a dataset's tasks as directories, for `sweep run`
"""
