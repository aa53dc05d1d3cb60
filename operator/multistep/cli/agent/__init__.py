"""`multistep agent`: lists Harbor's agents, and builds images of their programs.

commands    the options of its commands
table       the table of `agent list`
programs    which agents' programs can be put into an image, and its Dockerfile
build       `agent build`
"""
