"""`kind: t5` names the module `jaxpt.models.t5`; a dotted kind names anyone's own. No central list to edit."""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING

from jaxpt.errors import UserError

if TYPE_CHECKING:
    from pydantic import BaseModel


def kinds(package: str, base: type[BaseModel]) -> list[str]:
    """The kinds that a package offers: its modules that define a configuration class.

    Args:
      package: `jaxpt.models` or `jaxpt.objectives`.
      base: `ModelConfig` or `ObjectiveConfig`.

    Returns:
      Module names in alphabetical order.
    """
    return sorted(name for name in _modules(package) if _defined(f"{package}.{name}", base))


@functools.cache
def resolve(kind: str, package: str, base: type[BaseModel], part: str | None = None) -> type[BaseModel]:
    """The configuration class that a `kind` names.

    Args:
      kind: a module of `package` ("t5"), or the dotted path of a module that defines exactly one subclass of `base`.
      package: where short names are looked up.
      base: `ModelConfig` or `ObjectiveConfig`.
      part: the dotted key of what is of this kind, for messages; the package's singular by default.

    Returns:
      The class.

    Raises:
      UserError: no such module (the nearest right names are given), or not exactly one class in it.
    """
    key = f"{part or package.rpartition('.')[2].removesuffix('s')}.kind"  # model.kind
    short = "." not in kind
    module = f"{package}.{kind}" if short else kind
    try:
        classes = _defined(module, base) if not short or kind in _modules(package) else []
    except Exception as error:
        if short:
            raise
        raise UserError(f"{key}: importing {kind} failed: {type(error).__name__}: {error}") from error
    if short and not classes:
        known = kinds(package, base)
        raise UserError(f"{key}: {kind!r} is none of {', '.join(known)}{nearest(kind, known, '')}")
    if len(classes) != 1:
        raise UserError(f"{key}: module {module} must define one subclass of {base.__name__}, it has {len(classes)}")
    return classes[0]


def nearest(word: str, known: list[str], otherwise: str | None = None) -> str:
    """The end of a message about a wrong name: "; did you mean …?", or all the names there are.

    Args:
      word: the wrong name.
      known: the right ones.
      otherwise: what to say when none is near, instead of all names.

    Example:
      >>> nearest("lenght", ["length", "batch_size"])
      '; did you mean length?'
    """
    close = difflib.get_close_matches(word, known, n=2, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; known here: {', '.join(known)}" if otherwise is None else otherwise


def _modules(package: str) -> list[str]:
    return [module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__)]


def _defined(module: str, base: type[BaseModel]) -> list[type[BaseModel]]:
    """Classes under `base` that `module` itself defines, abstract ones (without a default `kind`) left out."""
    return [
        cls
        for cls in vars(importlib.import_module(module)).values()
        if isinstance(cls, type)
        and issubclass(cls, base)
        and cls.__module__ == module
        and not cls.model_fields["kind"].is_required()
    ]
