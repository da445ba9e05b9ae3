"""Models that an objective looks at and does not train, such as a teacher: found, loaded, and known again.

They are loaded once, sharded as parameters are, and given to the steps beside the state: no optimizer, average or
checkpoint has them. Which weights they are belongs to the run: checkpoints remember their digest, and a resume beside
others is refused. Their path may change.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from flax import traverse_util

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.errors import UserError
from jaxpt.models.network import Network
from jaxpt.parallel import processes, rules
from jaxpt.runtime import hub
from jaxpt.train import checkpoint, checksums, foreign, preflight, vocabularies, weights
from jaxpt.train.state import Setup, Teacher, size

if TYPE_CHECKING:
    from jaxpt.data.tokenizers.base import Tokenizer

Say = Callable[[str], None]


def find_all(config: Config) -> dict[str, dict[str, Any]]:
    """Finds the teachers of a run; nothing is read yet.

    Args:
      config: the run's configuration.

    Returns:
      {name: {"path", "step"}}, step None of a Hugging Face directory.

    Raises:
      UserError: one is not there (the command that makes it is named where its recipe is known), or phases differ.
    """
    paths = config.objective.teachers()
    for index, phase in enumerate(configs.phase_configs(config)):
        if phase.objective.teachers() != paths:
            raise UserError(f"train.phases.{index}.set: objective.{next(iter(paths))} is the same in all phases")
    return {name: _find(name, path) for name, path in paths.items()}


def attach(setup: Setup, say: Say, shapes_alone: bool = False) -> Setup:
    """Loads the teachers of a run's objective.

    Args:
      setup: of the run.
      say: is given a line for each.
      shapes_alone: no weights are read: enough to compile a step for devices that need not be here.

    Returns:
      The setup with them.

    Raises:
      UserError: one is not there, is damaged, or does not go with the run's model or task.
    """
    locations = find_all(setup.config)
    if not locations:
        return setup
    settings = setup.config.checkpoint
    opened = {
        name: weights.open_weights(where["path"], where["step"], settings=settings) for name, where in locations.items()
    }
    networks = {name: network for name, (_, network, _) in opened.items()}
    for phase in configs.phase_configs(setup.config):
        phase.objective.check_teachers(phase.model, phase.data.length, networks)
        preflight.refuse_to_begin(phase, phase.objective.missing_teacher_rows(networks))
    loaded = {}
    for name, (parts, network, title) in opened.items():
        loaded[name] = _load(f"objective.{name}", None if shapes_alone else parts, network, locations[name], setup)
        say(f"{name}: {title}, {network.config.kind}, {size(loaded[name].params) / 1e6:.1f} MB in all")
    return dataclasses.replace(setup, teachers=loaded)


def attach_same(setup: Setup, meta: Mapping[str, Any], say: Say) -> Setup:
    """`attach` for an evaluation: where they are missing, or not those of the checkpoint, a line says so, and the setup
    comes back as it is.

    Args:
      setup: of the run.
      meta: what was saved beside the checkpoint.
      say: is given lines.

    Returns:
      The setup, with the teachers or without.
    """
    try:
        attached = attach(setup, say)
        check_same(attached, meta, "the checkpoint")
        return attached
    except UserError as error:
        say(f"{error}; evaluating what needs no {' and no '.join(setup.config.objective.teachers())}")
        return setup


def identities(setup: Setup) -> dict[str, Any]:
    """The teachers' identities, for `meta` and run.json; {} without teachers."""
    return {"teachers": {name: teacher.identity for name, teacher in setup.teachers.items()}} if setup.teachers else {}


def check_same(setup: Setup, meta: Mapping[str, Any], where: str) -> None:
    """Raises UserError where the teachers are not those of a checkpoint.

    Args:
      setup: with the teachers.
      meta: what was saved beside the checkpoint.
      where: the checkpoint, for the message.
    """
    for name, teacher in setup.teachers.items():
        was, now = meta.get("teachers", {}).get(name), teacher.identity
        if was and was["digest"] != now["digest"]:
            raise UserError(
                f"{where}: was trained with another {name}: {_title(was)}, objective.{name} is now {_title(now)}; "
                "name the former, or branch into a new run_dir with init_from"
            )


def check_vocabulary(setup: Setup, tokenizer: Tokenizer) -> None:
    """Raises UserError where the run's vocabulary is not that of its teachers."""
    path = setup.config.objective.vocabulary_path()
    if not setup.teachers or path is None:
        return
    from jaxpt.data import tokenizers

    settings = setup.config.data.tokenizer
    theirs = tokenizers.load(path, settings.kind if "." in settings.kind else None, extra_ids=settings.extra_ids)
    if theirs.digest() != tokenizer.digest():
        raise UserError(
            f"data.tokenizer: is not the vocabulary of {path}, which the objective needs: "
            f"{_difference(tokenizer, theirs)}; leave data.tokenizer.path out to take that one"
        )


def other_vocabulary(config: Config, tokenizer: Tokenizer) -> str | None:
    """What to say where a run takes weights whose token ids stand for other tokens than its own.

    Args:
      config: of a run that begins.
      tokenizer: the run's.

    Returns:
      A line; None where the ids are the same, where `init_from.vocabulary` is not `same`, and where nobody knows.
    """
    source = config.init_from
    if source is None or source.random or source.vocabulary != "same":
        return None
    from jaxpt.data import tokenizers

    directory = vocabularies.directory_of(source.path)
    try:
        theirs = tokenizers.load(directory, extra_ids=config.data.tokenizer.extra_ids)
    except UserError:  # it has none, as T5X's have, or one that is not read here
        return None
    ids = range(min(tokenizer.vocabulary.size, theirs.vocabulary.size))
    pairs = zip(ids, tokenizer.pieces(ids), theirs.pieces(ids), strict=True)
    other = next((f"id {i} is {a!r} here, {b!r} there" for i, a, b in pairs if a != b), None)
    if other is None:
        return None
    return (
        f"warning: data.tokenizer is not the vocabulary of init_from.path: {source.path}, whose weights are taken: "
        f"{other}; data.tokenizer.path={directory} takes that one"
    )


def _difference(mine: Tokenizer, theirs: Tokenizer) -> str:
    """The first thing in which two vocabularies differ, in words."""
    for field in ("kind", "lowercase", "vocabulary"):
        a, b = getattr(mine, field), getattr(theirs, field)
        if field == "vocabulary":
            field, a, b = "size", a.size, b.size
        if a != b:
            return f"{field} {a} here, {b} there"
    ids = range(mine.vocabulary.size)
    for i, a, b in zip(ids, mine.pieces(ids), theirs.pieces(ids), strict=True):
        if a != b:
            return f"id {i} is {a!r} here, {b!r} there"
    return "the same ids, reached by other rules"


def _find(name: str, path: str) -> dict[str, Any]:
    if foreign.reader(path):
        return {"path": path, "step": None}
    if configs.run_dir_of(path).is_dir():
        run_dir, step = checkpoint.find(path)
        return {"path": str(run_dir), "step": processes.from_first(f"the step of {name}", step)}
    recipes = [file for file in Path("configs").glob(f"*/{Path(path).name}.yaml") if file.parent.name != "models"]
    command = f"`jaxpt train {recipes[0]}` makes one" if recipes else "`jaxpt train` and `jaxpt import` make them"
    raise UserError(f"objective.{name}: {path}: there is no run_dir and no Hugging Face directory; {command}")


def _load(key: str, parts: Any, network: Network, where: dict[str, Any], setup: Setup) -> Teacher:
    shapes = network.shapes()
    shardings = rules.shardings(network.logical_axes(), shapes, setup.mesh, setup.table)
    if parts is None:
        placed = jax.tree.map(lambda s, p: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=p), shapes, shardings)
        return Teacher(network, placed, shardings, where)
    places = traverse_util.flatten_dict(shardings, sep="/")
    flat = {path: weights.placed(array, places[path]) for path, array in parts if path in places}
    for path, shape in traverse_util.flatten_dict(shapes, sep="/").items():
        if path not in flat or flat[path].shape != shape.shape:
            raise UserError(f"{key}: {where['path']}: lacks {path}, or has it in another shape")
    identity = {**where, "digest": _digest(where)}
    return Teacher(network, traverse_util.unflatten_dict(flat, sep="/"), shardings, identity)


def _digest(where: Mapping[str, Any]) -> str:
    """Hash of the files that hold the weights, which have been verified."""
    directory = hub.local(where["path"])
    if where["step"] is not None:
        return checksums.digest(directory / "checkpoints" / str(where["step"]) / "state" / checksums.NAME)
    files = sorted(directory.glob("*.safetensors")) or sorted(directory.glob("*.bin"))
    hashes = [checksums.digest(file) for file in (directory / "config.json", *files)]
    return hashlib.blake2b(" ".join(hashes).encode(), digest_size=16).hexdigest()


def _title(identity: Mapping[str, Any]) -> str:
    at = "" if identity["step"] is None else f" at step {identity['step']}"
    return f"{identity['path']}{at} ({identity['digest'][:8]})"
