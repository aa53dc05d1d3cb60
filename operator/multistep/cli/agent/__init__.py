"""`multistep agent`: lists Harbor's agents, and builds images of their programs.

commands          the options of its commands
agent_programs    which agents' programs can be put into an image: table, Dockerfile, build
"""
