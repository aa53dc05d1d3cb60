"""`multistep agent`: Harbor's agents, and images of their programs."""
