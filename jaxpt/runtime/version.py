"""The version, for files that may not import `jaxpt` itself, which leads to `jaxpt.fit` and all that it runs."""

__version__ = "0.1.0"
