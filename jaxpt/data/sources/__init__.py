"""Sources of documents. `base` says what one is, `opening` finds the one that a configuration names."""

from jaxpt.data.sources.base import Source

__all__ = ["Source"]
