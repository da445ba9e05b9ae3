"""Modules that a recipe names. Importing one runs its code, so a note says it before; its errors become one line."""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import importlib
import importlib.util
import inspect
import json
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from jaxpt import errors
from jaxpt.errors import UserError

imported: dict[str, None] = {}
"""Names of modules that were imported here and are not jaxpt's."""
_digests: dict[str, tuple[ModuleType, str]] = {}
"""Name of a module → (the module, the digest of its source): at its import, or when it was first asked for."""

_are_unread = contextvars.ContextVar("_are_unread", default=False)


@contextlib.contextmanager
def unread() -> Iterator[None]:
    """Forbids, within it, the import of modules that a configuration names. Commands that list, compare and verify runs
    use it, as these may be anyone's. It is a decorator as well."""
    token = _are_unread.set(True)
    try:
        yield
    finally:
        _are_unread.reset(token)


def are_unread() -> bool:
    """True within `unread`."""
    return _are_unread.get()


def check_may_run(name: str, key: str) -> None:
    """Raises UserError within `unread` if a module is not one of jaxpt's.

    Args:
      name: dotted name of the module.
      key: the key that names it.
    """
    if is_plugin(name) and are_unread():
        raise UserError(f"{key}: {name} is not imported here: no code runs that a file of others names")


def import_module(name: str, key: str) -> ModuleType:
    """Imports a module; a note says so before, if it is not one of jaxpt's.

    Args:
      name: dotted name of the module.
      key: the key of the recipe that names it.

    Returns:
      The module.

    Raises:
      UserError: within `unread`.
    """
    check_may_run(name, key)
    if name not in sys.modules and is_plugin(name) and (place := _place(name.partition(".")[0])):
        errors.note(f"{key}: importing {name} from {place}, whose code then runs")
    module = importlib.import_module(name)
    if is_plugin(name):
        imported[name] = None
        digests([name])  # before anyone edits them
    return module


def _place(package: str) -> str | None:
    """The place of a package or module without dots in its name; None if there is none. Nothing is imported."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    return next(iter((spec and spec.submodule_search_locations) or ()), None) or (spec and spec.origin)


def is_plugin(module: str) -> bool:
    """True if a module is not one of jaxpt's."""
    return module.partition(".")[0] != "jaxpt"


def _with_neighbours(modules: Iterable[str]) -> list[str]:
    """Modules, and those of the same directory that they use, whose code has a part in what they make.

    Args:
      modules: names of modules that are imported.

    Returns:
      Their names, sorted; those without a file are left out.
    """
    files: dict[str, Path | None] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name in files:
            continue
        files[name] = _file(name)
        used = vars(sys.modules[name]).values()
        owners = {x.__name__ if inspect.ismodule(x) else getattr(x, "__module__", "") for x in used}
        waiting += [x for x in owners & set(sys.modules) if _directory(x) == _directory(name) is not None]
    return sorted(name for name, file in files.items() if file is not None)


def _file(module: str) -> Path | None:
    path = getattr(sys.modules[module], "__file__", None)
    return Path(path).resolve() if path else None


def _directory(module: str) -> Path | None:
    file = _file(module)
    return file.parent if file else None


def digests(modules: Iterable[str]) -> dict[str, str]:
    """Hashes the code of modules, and of those of the same directory that they use, as they were imported.

    Args:
      modules: names of modules that are imported.

    Returns:
      {module: digest of its source}.
    """
    return {name: digest(name) for name in _with_neighbours(modules)}


def digest(module: str) -> str:
    """Hash of a module's source as it was imported: 20 hexadecimal digits."""
    loaded = sys.modules[module]
    if module not in _digests or _digests[module][0] is not loaded:
        _digests[module] = loaded, _on_disk(_file(module))
    return _digests[module][1]


def _on_disk(file: Path | None) -> str:
    content = file.read_bytes() if file is not None and file.is_file() else b""
    return hashlib.blake2b(content, digest_size=10).hexdigest()


def check_unedited(settings: Any) -> None:
    """Raises UserError where a module that settings name, or one of its directory that it uses, was edited since its
    import: this process would run its old code, and those that it starts the new one.

    Args:
      settings: plain values; names of modules, or of what is in them, are keys or values in it.
    """
    text = json.dumps(settings, default=str)
    named = [name for name in imported if name in sys.modules and re.search(rf'"{re.escape(name)}[".]', text)]
    files = [(name, digest, _file(name)) for name, digest in digests(named).items()]
    edited = [name for name, digest, file in files if file and file.is_file() and digest != _on_disk(file)]
    if edited:
        verb = "was edited since it was" if len(edited) == 1 else "were edited since they were"
        raise UserError(f"{' and '.join(edited)} {verb} imported: restart Python")


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turns an exception from a user's module into a `UserError` that names its line. Once such a module was imported,
    an exception from jaxpt is treated alike: its values may have caused it. `--debug` shows the traceback."""
    try:
        yield
    except (UserError, OSError, ModuleNotFoundError):
        raise
    except Exception as error:
        if not imported:
            raise
        raise UserError(f"{_message(error)}; --debug shows the traceback") from error


def _message(error: Exception) -> str:
    """The message of an exception, with the innermost place in a user's module, else in jaxpt."""
    plugin_frames = _frames(error, {name.partition(".")[0] for name in imported})
    code, line = (plugin_frames or _frames(error, {"jaxpt"}))[-1]
    place = f"{code.co_filename}:{line}: in {code.co_qualname}"
    text = str(error).strip()
    if text.startswith("in user code:") and (places := _PLACE.findall(text)):  # TensorFlow runs a translation
        file, line, function = places[-1]
        place, text = f"{file}:{line}: in {function}", text.splitlines()[-1].strip()
    kind = type(error).__name__
    lines = [line for line in text.removeprefix(f"{kind}: ").splitlines() if line and not _OF_GRAPHS.match(line)]
    message = f"{kind}: {lines[0]}" if lines else kind
    origin = "" if plugin_frames else f", with what {', '.join(list(imported)[:3])} gave"
    return f"{place}: {message}{origin}"


def place(error: Exception, package: str) -> str:
    """FILE:LINE of the innermost place of a package that an exception came through; "" where there is none."""
    frames = _frames(error, {package})
    return f"{frames[-1][0].co_filename}:{frames[-1][1]}" if frames else ""


def _frames(error: Exception, packages: Set[str]) -> list[tuple[CodeType, int]]:
    """(code, line) of the calls in some packages that an exception came through, the outermost first."""
    frames = traceback.walk_tb(error.__traceback__)
    return [(f.f_code, line) for f, line in frames if f.f_globals.get("__name__", "").partition(".")[0] in packages]


_OF_GRAPHS = re.compile(r"Graph execution error|Detected at node|<stack traces|\s*\[\[|\s*File ")
"""TensorFlow's lines before the one that says what was wrong."""
_PLACE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)  \*')
