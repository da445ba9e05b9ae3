"""Versions of installed packages."""

from __future__ import annotations

import importlib.metadata


def version(name: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
