"""The agent host: runs one of Harbor's agents for one trial, beside the trial's environment."""

__version__ = "0.1.0"
