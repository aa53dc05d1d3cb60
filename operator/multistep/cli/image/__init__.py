"""Images of tasks and agents: names, builds, pushes, loads into a local cluster.

images            the image of a task's environment, with the runner in it
agent_programs    images of the programs of Harbor's agents
agent_host        images of the agent host, with a chosen version of Harbor
engines           container engines behind one interface
"""
