"""Tasks and images, loaded in the background: once for all trials that need them, under limits that are fair between namespaces.

load_tasks         fetches and reads tasks
build_images       builds images
build_one_image    one build: registry, builder's pod, next action
"""
