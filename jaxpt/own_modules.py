"""Imports of modules that a recipe names. Importing one runs its code, so it is said before."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

from jaxpt import errors


def import_module(name: str, key: str) -> ModuleType:
    """Imports a module of one's own, and says so before.

    Args:
      name: dotted name of the module.
      key: the key of the recipe that names it.

    Returns:
      The module; one of jaxpt's, or one that is imported already, without a line.
    """
    if name not in sys.modules and name.partition(".")[0] != "jaxpt":
        errors.note(f"{key}: importing {name} from {_place(name.partition('.')[0])}, whose code then runs")
    return importlib.import_module(name)


def _place(package: str) -> str:
    """Where a package or module without dots in its name lies; nothing is imported."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return "nowhere"
    return next(iter(spec.submodule_search_locations or ()), None) or spec.origin or "nowhere"
