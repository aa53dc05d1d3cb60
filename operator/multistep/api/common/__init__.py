"""Types and functions that the documents of tasks, trials and sweeps share. Open base_model.py first.

base_model    base class of the models of custom resources, common types, environment variables, metadata, quantities
labels        labels and annotations that identify an object's trial or sweep
plural        a count with its noun, for messages
safe_paths    whether a path of a task, an archive or a result leads out of its directory ('..')
problems      pydantic's errors as readable lines
"""
