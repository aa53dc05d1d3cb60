"""Tasks and images, loaded in the background: once for all trials that need them, under limits that are fair between namespaces.

fetch_tasks        fetches tasks
read_tasks         reads tasks
build_images       builds images
build_one_image    one build: registry, builder's pod, next action
"""
