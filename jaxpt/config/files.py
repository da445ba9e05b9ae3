"""Recipes as files: YAML with `base:` files under it and `key=value` overrides on top; and back to YAML."""

from __future__ import annotations

import copy
import difflib
import json
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from jaxpt import errors
from jaxpt.config.check import build, dump
from jaxpt.config.explain import explain
from jaxpt.config.kinds import strictly
from jaxpt.config.layers import Dropped, check_phases, drop_own_keys, dropped_lines, keep_saved, switch, switch_advice
from jaxpt.config.phases import unreached
from jaxpt.config.plain import get, leaves, merge, put
from jaxpt.config.tree import Config
from jaxpt.errors import UserError, shown
from jaxpt.runtime.disk import check_file, is_utf_8

Part = TypeVar("Part", bound=BaseModel)


def load(
    path: str | Path,
    overrides: Sequence[str] = (),
    where: str = "command line",
    report: Callable[[str], None] = lambda line: None,
    complete: Callable[[dict[str, Any]], dict[str, Any]] = lambda tree: tree,
) -> Config:
    """Reads a recipe, applies `key=value` overrides and checks every key and type.

    Args:
      path: a YAML file, or the directory of a run. A recipe's `base:` (a path relative to it, or a list of them) is
        merged under it: mappings key by key. Where their `kind` differs, a model and an objective keep what all their
        kinds share, and other mappings start empty.
      overrides: such as `optimizer.learning_rate=3e-4`; the value is read as YAML. `optimizer.kind=lion` alone drops
        the other optimizer's own keys; the kind alone of another part keeps all keys.
      where: where the overrides stand, for messages.
      report: is given a line for values of a base with another `kind`, and for phases that the run does not reach.
      complete: is given the plain tree of a recipe with a task, with `data.tokenizer.add_tokens` or with
        `init_from.path`, before it is checked, to fill in what the recipe leaves out.

    Returns:
      The frozen configuration; `run_dir` is filled in.

    Raises:
      UserError: names the file (or the override), the key, what was given and what is wanted.

    Example:
      >>> config = load("configs/smoke/t5_tiny.yaml", ["train.steps=20"])
      >>> config.train.steps
      20
    """
    path = Path(path)
    tree, origin, dropped = read(recipe_file(path))
    # A run may have moved since its config.yaml was written.
    tree["run_dir"] = str(path) if path.is_dir() else tree.get("run_dir") or f"runs/{path.stem}"
    for assignment in overrides:
        dropped += override(tree, origin, assignment, where)
    saved = Path(str(tree["run_dir"])) / "config.yaml"
    if any(drop.by_kind_alone for drop in dropped) and saved.is_file():
        keep_saved(tree, dropped, read(saved)[0])
    try:
        wanted = (("task",), ("data", "tokenizer", "add_tokens"), ("init_from", "path"))
        if any(get(tree, keys) is not None for keys in wanted):
            tree = complete(tree)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    try:
        config = build(tree, lambda key: origin_of(key, origin, str(path)))
    except UserError as error:
        raise UserError(f"{error}{switch_advice(str(error), dropped, origin)}") from error
    check_phases(dump(config), origin, where)
    for line in dropped_lines(dropped, dump(config)):
        report(line)
    if line := unreached(config):
        report(f"{origin_of('train.steps', origin, str(path))}: {line}")
    return config


def run_dir_of(path: str | Path) -> Path:
    """The directory of a run, where a path is one of its `checkpoints/STEP`; else the path.

    Example:
      >>> str(run_dir_of("runs/t5/checkpoints/500")), str(run_dir_of("checkpoints/t5-small"))
      ('runs/t5', 'checkpoints/t5-small')
    """
    path = Path(path)
    return path.parent.parent if path.parent.name == "checkpoints" and path.name.isdigit() else path


def recipe_file(path: Path) -> Path:
    """A recipe, or the `config.yaml` of a run."""
    if not path.is_dir():
        return path
    if not (path / "config.yaml").is_file():
        raise UserError(f"{path}: there is no config.yaml in it; wants a recipe (.yaml) or the directory of a run")
    return path / "config.yaml"


def to_yaml(config: Config) -> str:
    """The resolved configuration as YAML, every default written out; `load` reads it back to an equal tree."""
    return yaml.dump(dump(config), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


_CHECKSUM = "# crc32 of what follows: "


def with_checksum(text: str) -> str:
    """The text of a `config.yaml`, after a line with its checksum: `read` says it where the file was changed."""
    return f"{_CHECKSUM}{zlib.crc32(text.encode()):08x}\n{text}"


def is_changed(text: str) -> bool:
    """True if a text is not as `with_checksum` made it; False of one without a checksum.

    Example:
      >>> is_changed(with_checksum("seed: 0")), is_changed(with_checksum("seed: 0") + "1"), is_changed("seed: 0")
      (False, True, False)
    """
    head, _, rest = text.partition("\n")
    return head.startswith(_CHECKSUM) and text != with_checksum(rest)


def _note_change(path: Path, text: str) -> None:
    if is_changed(text):
        errors.note(f"{path}: was changed since the run wrote it (its checksum differs); what it says now is used")


# ---- YAML -----------------------------------------------------------------------------------------------------------

_BYTES, _FILES = 1 << 18, 100
"""Maximum number of bytes of a recipe's file, and files of a recipe with its bases."""
_IS_NO_TEXT = "a recipe is a YAML file; data.path names texts"
_DATA = (".csv", ".tsv", ".txt", ".jsonl", ".parquet", ".conll", ".conllu", ".gz")
"""Suffixes of files that are not read as recipes, whatever YAML would make of their first lines."""
_VALUES, _CHARACTERS, _DEPTH = 100_000, 10_000_000, 50
"""Maximum number of values, characters and levels of a file."""

# YAML 1.2's scalars and `1_000`: 1e-4 is a number; `no`, 010, 1:30 and 2020-01-01 are words.
_NUMBER, _POWER = r"(?:0|[1-9][0-9_]*)", r"[eE][-+]?[0-9]+"
_SCALARS = (
    ("null", r"~|null|Null|NULL|", ("~", "n", "N", "")),
    ("bool", r"true|True|TRUE|false|False|FALSE", tuple("tTfF")),
    ("int", rf"[-+]?{_NUMBER}|0x[0-9a-fA-F]+", tuple("-+0123456789")),
    ("float", rf"[-+]?(?:(?:{_NUMBER}\.[0-9]*|\.[0-9]+)(?:{_POWER})?|{_NUMBER}{_POWER})", tuple("-+.0123456789")),
    ("merge", r"<<", ("<",)),
)  # fmt: skip


class _Loader(yaml.SafeLoader):
    """With YAML 1.2's scalars; a key given twice is an error."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen_keys: set[Any] = set()
        for key_node, _ in node.value:
            key = (key_node.tag, str(key_node.value))
            if key in seen_keys:
                problem = f"key {key_node.value!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen_keys.add(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes what `_Loader` would not read as a string."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


for _tag, _pattern, _first in _SCALARS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))


def parse(text: str, where: str) -> Any:
    """The value of a YAML text, made of mappings, lists, strings, numbers, booleans and null alone."""
    try:
        node = yaml.compose(text, _Loader)
        _check_size(node, where)
        value = None if node is None else _Loader("").construct_document(node)
        return json.loads(json.dumps(value, allow_nan=False))
    except RecursionError:
        raise UserError(f"{where}: nested too deeply") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{where}{at}: not valid YAML: {problem}") from None
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: a value that a recipe cannot hold: {error}") from None


def _check_size(node: yaml.Node | None, where: str) -> None:
    """Refuses a document that is small in the file and large in memory: aliases and merges of aliases and merges.

    Raises:
      UserError: written out, it has too many values, too much text or too deep lists and mappings; or it has no end.
    """
    sizes: dict[int, tuple[int, int, int]] = {}

    def measure(node: yaml.Node) -> tuple[int, int, int]:
        """(values, characters, depth), of each node once."""
        if isinstance(node, yaml.ScalarNode):
            return 1, len(node.value), 0
        if id(node) not in sizes:
            sizes[id(node)] = (0, 0, -1)  # as long as its parts are measured
            parts = node.value if isinstance(node, yaml.SequenceNode) else [x for pair in node.value for x in pair]
            values, characters, depths = zip(*map(measure, parts)) if parts else ((), (), ())
            sizes[id(node)] = 1 + sum(values), sum(characters), 1 + max(depths, default=0)
        elif sizes[id(node)][2] < 0:
            raise UserError(f"{where}: a value that a recipe cannot hold: it contains itself")
        return sizes[id(node)]

    values, characters, depth = (0, 0, 0) if node is None else measure(node)
    if values > _VALUES:
        raise UserError(f"{where}: has more than {_VALUES:,} values with its aliases written out")
    if characters > _CHARACTERS:
        raise UserError(f"{where}: has more than {_CHARACTERS:,} characters of text with its aliases written out")
    if depth > _DEPTH:
        raise UserError(f"{where}: nested too deeply")


# ---- files ----------------------------------------------------------------------------------------------------------


def _similar(path: Path) -> str:
    """The end of a message about a recipe: the nearest one of its folder, if it is not there."""
    if "\0" in str(path) or path.exists() or not path.parent.is_dir():
        return ""
    close = difflib.get_close_matches(path.stem, [file.stem for file in path.parent.glob("*.yaml")], n=1)
    return f"; did you mean {path.parent / close[0]}.yaml?" if close else ""


def read(
    path: Path, below: tuple[Path, ...] = (), opened: list[Path] | None = None
) -> tuple[dict[str, Any], dict[str, str], list[Dropped]]:
    """A recipe with its `base:` merged in; for each dotted key, the last set last, its file; what was dropped."""
    prefix = f"{below[-1]}: base: " if below else ""
    opened = [] if opened is None else opened
    opened.append(path)
    if len(opened) > _FILES:
        raise UserError(f"{opened[0]}: base: leads to more than {_FILES} files")
    if "\0" not in str(path) and path.resolve() in [recipe.resolve() for recipe in below]:
        raise UserError(f"{below[0]}: base: goes round in a circle: {' → '.join(map(str, (*below, path)))}")
    try:
        if check_file(path).suffix.lower() in _DATA:
            raise UserError(f"{path}: is data, not a recipe; a recipe is a YAML file with data.path: {path.name}")
        if path.stat().st_size > _BYTES:
            raise UserError(f"{path}: has more than {_BYTES:,} bytes; {_IS_NO_TEXT}")
        text = path.read_text(encoding="utf-8-sig")
        _note_change(path, text)
    except UserError as error:
        raise UserError(f"{prefix}{error}{_similar(path)}") from None
    except UnicodeDecodeError:
        raise UserError(f"{prefix}{path}: not UTF-8 text; {_IS_NO_TEXT}") from None
    except OSError as error:
        raise UserError(f"{prefix}{path}: {error.strerror or error}") from None
    file_tree = parse(text, str(path))
    if not isinstance(file_tree, dict):
        reason = ", it is empty" if file_tree is None else f"; {_IS_NO_TEXT}"
        raise UserError(f"{path}: wants a mapping of keys to values{reason}")
    bases = file_tree.pop("base", None) or []
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise UserError(f"{path}: base: wants a path relative to this file, or a list of them, got {json.dumps(bases)}")
    layers = [read(path.parent / base, (*below, path), opened) for base in bases]
    layers.append((file_tree, {key: str(path) for key, _ in leaves(file_tree)}, []))
    tree: dict[str, Any] = {}
    origin: dict[str, str] = {}
    dropped: list[Dropped] = []
    for layer, set_by, lost in layers:
        under, tree = tree, merge(tree, layer)
        origin = {key: file for key, file in origin.items() if key not in set_by} | set_by
        dropped += [*lost, *switch(under, tree, str(path))]
    return tree, origin, dropped


def override(tree: dict[str, Any], origin: dict[str, str], item: str, where: str = "command line") -> list[Dropped]:
    """Sets one `key=value` in the tree; returns what was dropped by it."""
    key, equals, text = item.partition("=")
    if not equals or not key or key.count(".") > _DEPTH:
        raise UserError(f"{where}: {shown(item)}: wants key=value, such as train.steps=100")
    value = _overriding_value(text, f"{where}: {item}")
    under = copy.deepcopy(tree)
    put(tree, key, value, where)
    dropped = drop_own_keys(under, tree, key, origin, where)
    for leaf, _ in leaves({key: value}):
        for old in [old for old in origin if f"{old}.".startswith(f"{leaf}.")]:
            del origin[old]
        origin[leaf] = where
    return [*dropped, *switch(under, tree, where)]


def _overriding_value(text: str, where: str) -> Any:
    """The value of an override. A plain string is taken as it was given: in a file's name YAML would make a space of a
    newline, and a comment of all after ` #`."""
    if not is_utf_8(text):
        raise UserError(f"{where}: has bytes that are not UTF-8; rename the file")
    if text[:1] in tuple("*&!%@`#"):  # a glob or an address: aliases, tags and comments have no use here
        return text
    value = parse(text, where)
    return text if isinstance(value, str) and text[:1] not in tuple("'\"|>") else value


def parsed(cls: type[Part], tree: Any, origin: dict[str, str], path: str) -> Part:
    """Validates the plain values of a file that is no recipe, such as a study or a task of the harness.

    Args:
      cls: what they are to be.
      tree: plain values.
      origin: where each was set, as `read` and `override` say it.
      path: the file.

    Raises:
      UserError: names the file (or the override), the key, what was given and what is wanted.
    """
    try:
        return strictly(cls, tree)
    except ValidationError as error:
        key, message = explain(error, tree, cls)
        raise UserError(f"{origin_of(key, origin, path)}: {message}") from None


def origin_of(key: str, origin: dict[str, str], default: str) -> str:
    """The file of a key, or of the nearest key above it or below it."""
    parts = key.split(".")
    for n in range(len(parts), 0, -1):
        prefix = ".".join(parts[:n])
        for known, where in reversed(origin.items()):
            if known == prefix or known.startswith(f"{prefix}."):
                return where
    return default
