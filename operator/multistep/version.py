"""The version of a release, which is that of the package, the images and the chart."""

__version__ = "0.1.0"
