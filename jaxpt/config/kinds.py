"""`kind: t5` names the module `jaxpt.models.t5`, `kind: cosine` the class of that kind in `jaxpt.train.schedules`; a
dotted kind names anyone's own module. No central list to edit."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import json
import pkgutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from jaxpt.errors import UserError
from jaxpt.runtime import plugins

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Kind:
    """Annotates a field whose class its `kind` names: `optimizer: Annotated[SerializeAsAny[Base], Kind(…)]`."""

    key: str
    """The field's dotted key, such as "optimizer.schedule"."""
    package: str
    """Where short names are looked up."""
    base: type[BaseModel]
    """What every class of this part is a subclass of."""
    default: str | None = None
    """The kind of a mapping without one; None where it has to be given."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(lambda value, _: self.validate(value), handler(source))

    def validate(self, value: Any) -> BaseModel:
        """Checks a mapping by the class that its `kind` names."""
        if isinstance(value, self.base):
            return value
        if not isinstance(value, dict) or not isinstance(value.get("kind", self.default), str):
            raise ValueError(f"wants a mapping with a `kind`, one of: {', '.join(kinds(self.package, self.base))}")
        kind = self._short(value.get("kind", self.default))
        rest = {key: v for key, v in value.items() if key != "kind"}
        part = strictly(resolve(kind, self.package, self.base, self.key), rest)
        return part.model_copy(update={"kind": kind})

    def _short(self, kind: str) -> str:
        """`t5` for `jaxpt.models.t5`; of another name nothing is cut."""
        name = kind.removeprefix(f"{self.package}.")
        return kind if "." in name else name

    def named(self, value: Any) -> type[BaseModel]:
        """The class that a mapping names; the base where that is no kind."""
        try:
            kind = self._short(value.get("kind", self.default))
            return resolve(kind, self.package, self.base, self.key)
        except (UserError, TypeError, AttributeError):
            return self.base

    def with_key(self, key: str) -> list[str]:
        """The kinds of the package that have a key."""
        known = {name: resolve(name, self.package, self.base, self.key) for name in kinds(self.package, self.base)}
        return [name for name, cls in known.items() if key in cls.model_fields]


def kind_of(field: FieldInfo | None) -> Kind | None:
    """The annotation of a field whose class, or whose items' class, its `kind` names; None of any other field."""
    if field is None:
        return None
    of_items = (note for item in get_args(field.annotation) for note in getattr(item, "__metadata__", ()))
    return next((note for note in (*field.metadata, *of_items) if isinstance(note, Kind)), None)


def strictly(cls: type[BaseModel], value: Any) -> Any:
    """Validates plain values in JSON mode: lists become tuples, but "32" is no integer and 1 no boolean."""
    return cls.model_validate_json(json.dumps(value), strict=True)


def kinds(package: str, base: type) -> list[str]:
    """The kinds that a package offers: its modules that define a class of them, and its own classes.

    Args:
      package: such as `jaxpt.models`.
      base: what their classes are subclasses of, such as `ModelConfig`.

    Returns:
      Their names in alphabetical order.
    """
    modules = [name for name in _modules(package) if _defined(f"{package}.{name}", base)]
    return sorted([*modules, *map(_default_kind, _defined(package, base))])


def resolve(kind: str, package: str, base: type[T], part: str | None = None) -> type[T]:
    """The class that a `kind` names.

    Args:
      kind: a module of `package` ("t5"), the kind of a class in it, or the dotted path of a module that defines exactly
        one subclass of `base`.
      package: where short names are looked up.
      base: such as `ModelConfig`.
      part: the dotted key of what is of this kind, for messages; the package's singular by default.

    Returns:
      The class.

    Within `plugins.unread` the class of a dotted kind is a stand-in for it, an `Unread`.

    Raises:
      UserError: no such module (the nearest right names are given), or not exactly one class in it.
    """
    if plugins.are_unread() and "." in kind.removeprefix(f"{package}.") and issubclass(base, BaseModel):
        return _stand_in(base)
    key = f"{part or package.rpartition('.')[2].removesuffix('s')}.kind"  # model.kind
    plugins.check_may_run(kind if "." in kind else package, key)
    return _imported(kind, package, base, key)


class Unread:
    """A part of the configuration whose class is code that was not run: it has the values that are in the file."""


class _UnreadError(UserError, AttributeError):
    """What a stand-in is asked for is in code that was not run."""


def is_unread(part: Any) -> bool:
    """True if a part of the configuration, or anything in it, is an `Unread`."""
    if isinstance(part, tuple):
        return any(map(is_unread, part))
    fields = getattr(type(part), "model_fields", {})
    return isinstance(part, Unread) or any(is_unread(getattr(part, name)) for name in fields)


@functools.cache
def _stand_in(base: type[T]) -> type[T]:
    class StandIn(base, Unread, extra="allow"):  # type: ignore[valid-type, misc, call-arg]
        kind: str = ""

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                raise _UnreadError(f"{vars(self).get('kind')}: {name} is in its code, which is not run here") from None

    for name in StandIn.__class_vars__:
        if not hasattr(StandIn, name):
            setattr(StandIn, name, None)
    return StandIn


@functools.cache
def _imported(kind: str, package: str, base: type[T], key: str) -> type[T]:
    short = "." not in kind
    module = kind if not short else f"{package}.{kind}" if kind in _modules(package) else package
    try:
        classes = [cls for cls in _defined(module, base, key) if module != package or _default_kind(cls) == kind]
    except Exception as error:
        if short:
            raise
        if isinstance(error, ModuleNotFoundError) and (holder := _module_above(error.name or "")):
            requirement = "a kind names a module in a package, and no class in it"
            raise UserError(f"{key}: {kind}: {holder} is a module; {requirement}") from error
        raise UserError(f"{key}: {import_failure(kind, error)}") from error
    if short and not classes:
        known = kinds(package, base)
        hint = nearest(kind, known, "; a dotted path names a module of yours")
        raise UserError(f"{key}: {kind!r} is none of {', '.join(known)}{hint}")
    if len(classes) != 1:
        raise UserError(f"{key}: module {module} must define one subclass of {base.__name__}, it has {len(classes)}")
    return classes[0]


def _module_above(missing: str) -> str | None:
    """What a name that is not there was looked for in, where that is a module and no package."""
    above = missing.rpartition(".")[0]
    return above if above in sys.modules and not hasattr(sys.modules[above], "__path__") else None


def import_failure(name: str, error: Exception) -> str:
    """Why a module of anyone's own cannot be imported, with the place in its code, or what to do about a wrong name.

    Args:
      name: dotted name of the module.
      error: what its import raised.
    """
    place = plugins.place(error, name.partition(".")[0])
    hint = _missing(name, error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    return f"importing {name} failed: {place and f'{place}: '}{type(error).__name__}: {error}{hint}"


def _missing(name: str, missing: str) -> str:
    """What to do where a part of a dotted name is not there; nothing where its code imports what is not there."""
    package, _, last = missing.rpartition(".")
    if missing != name and not name.startswith(f"{missing}."):
        return ""
    if not package:
        return f"; start jaxpt in the directory that {missing} is in, or put that directory on PYTHONPATH"
    return nearest(last, _modules(package), "", within=(package,))


def nearest(
    word: str, known: list[str], otherwise: str | None = None, within: Sequence[str] = (), cutoff: float = 0.5
) -> str:
    """The end of a message about a wrong name: "; did you mean …?", or all the names there are.

    Args:
      word: the wrong name.
      known: the right ones.
      otherwise: what to say when none is near, instead of all names.
      within: the parts of the key that they stand under, said before each.
      cutoff: how alike names have to be, from 0 to 1.

    Example:
      >>> nearest("lenght", ["length", "batch_size"])
      '; did you mean length?'
    """
    close = difflib.get_close_matches(word, known, n=2, cutoff=cutoff)
    if close:
        return f"; did you mean {' or '.join('.'.join((*within, name)) for name in close)}?"
    return f"; known here: {', '.join(known)}" if otherwise is None else otherwise


def _modules(package: str) -> list[str]:
    path = getattr(importlib.import_module(package), "__path__", ())  # a module has none
    return [module.name for module in pkgutil.iter_modules(path)]


def _defined(module: str, base: type[T], key: str = "kind") -> list[type[T]]:
    """Classes under `base` that `module` itself defines, abstract ones (without a `kind`) left out."""
    return [
        cls
        for cls in vars(plugins.import_module(module, key)).values()
        if isinstance(cls, type) and issubclass(cls, base) and cls.__module__ == module and _default_kind(cls)
    ]


def _default_kind(cls: type) -> str | None:
    """The `kind` of a class: the default of a field, or an attribute if it is no part of the tree; None without one."""
    fields = getattr(cls, "model_fields", None)
    if fields is None:
        return vars(cls).get("kind")
    return None if fields["kind"].is_required() else fields["kind"].default
