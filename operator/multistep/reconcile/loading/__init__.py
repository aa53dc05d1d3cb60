"""Loads tasks and builds images in the background, once for all trials that need them, with limits that are fair between
namespaces.

background_jobs    the running jobs, their slots and results
load_tasks         fetches and reads tasks
build_images       builds images
build_one_image    runs one build until the registry has its image
"""
