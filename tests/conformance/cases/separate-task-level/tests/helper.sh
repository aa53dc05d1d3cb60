HELPER=task
