"""The agent host, which runs one of Harbor's agents for one trial, in a container beside the trial's environment."""

__version__ = "0.1.0"
