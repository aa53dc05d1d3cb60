"""The version of all that one release contains: the package, the images, the chart."""

__version__ = "0.1.0"
