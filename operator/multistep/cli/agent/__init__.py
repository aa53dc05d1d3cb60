"""`multistep agent`: lists Harbor's agents, and builds images of their programs."""
