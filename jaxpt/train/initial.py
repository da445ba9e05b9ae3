"""The state that a run starts from: its newest checkpoint, weights made elsewhere, or a fresh one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from jaxpt import config as configs
from jaxpt.config import Config, InitConfig, ModelConfig
from jaxpt.data import tokenizers
from jaxpt.data.parts import each_task
from jaxpt.errors import UserError, listed
from jaxpt.models import base, parts
from jaxpt.models.heads import classes
from jaxpt.models.layers import stored_rows
from jaxpt.models.network import Network
from jaxpt.models.stored import StoredParam, stored_params
from jaxpt.objectives.rows import TOKENS, RowObjective
from jaxpt.parallel import processes, rules
from jaxpt.train import (
    checkpoint,
    foreign,
    local_checkpoints,
    lora,
    optimizers,
    teachers,
    trainable,
    upcycle,
    vocabularies,
    weights,
)
from jaxpt.train.display import say
from jaxpt.train.run_dir import changes, edited, receipt
from jaxpt.train.state import Setup, State, per_device_size


class Beginning(NamedTuple):
    """What a run starts from."""

    state: State
    meta: dict[str, Any] | None = None
    """What was saved beside the run's own checkpoint; None without one."""
    origin: dict[str, Any] | None = None
    """Of a branch with the whole state, on data of the same settings: what the source's checkpoint says of them."""


def begin(
    setup: Setup,
    checkpoints: checkpoint.Checkpoints,
    run_dir: Path,
    local: local_checkpoints.LocalCheckpoints | None = None,
) -> Beginning:
    """The state to go on from: of the run's newest checkpoint, as `init_from` says, or a fresh one.

    Args:
      setup: of the run.
      checkpoints: those that the run has.
      run_dir: where they are.
      local: those of the hosts, if there are any.

    Raises:
      UserError: the checkpoint does not belong to the run, or `init_from` does not fit the model or the run's length.
    """
    while True:
        latest = checkpoints.newest_whole(report=say)
        if local and (found := local.restore(functools.partial(setup_at, setup), -1 if latest is None else latest)):
            _check_resumed(setup, run_dir, int(found[0].step), "checkpoint.local_dir", found[1])
            return Beginning(*found)
        if latest is None:
            break
        try:
            return Beginning(*_resume(setup, checkpoints, run_dir, latest))
        except checkpoint.AlteredError as error:
            checkpoints.put_aside(latest, str(error), say)
    source = setup.config.init_from
    if source is None:
        return Beginning(setup.init())
    if source.random:
        say(f"all weights are random: of {source.path} only model and vocabulary are taken")
        return Beginning(setup.init())
    if not foreign.reader(source.path):  # a run that is under way may have a newer one for the next process
        step = processes.from_first("the step to start from", checkpoint.find(source.path, source.step)[1])
        source = source.model_copy(update={"step": step})
    other = foreign.reader(source.path) or source.partial or source.layers or source.vocabulary != "same"
    other = other or setup.config.task is not None or source.upcycle
    if not source.state and other:
        return Beginning(start(setup, source, say))
    from_dir, at = checkpoint.find(source.path, source.step)
    steps = setup.config.train.steps
    if source.state and at >= steps:
        go_on = f"{configs.extension(setup.config, 2 * at)} goes on from there"
        raise UserError(f"init_from: {from_dir} is at step {at}, train.steps is {steps}; {go_on}")
    try:
        with checkpoint.Checkpoints(from_dir, setup.config.checkpoint, read_only=True) as saved:
            if source.state:
                say(f"branching from {from_dir} at step {at}: the whole state")
                origin = saved.meta(at) if _has_settings_of(setup.config, configs.load(from_dir), at) else None
                return Beginning(saved.restore(setup_at(setup, at), at), origin=origin)
            say(f"starting from the weights of {from_dir} at step {at}")
            return Beginning(from_params(setup, setup.init(), saved.restore_params(setup, at)))
    except ValueError as error:
        raise UserError(f"init_from.path: {from_dir}: does not fit this model: {str(error).splitlines()[0]}") from None


def _has_settings_of(config: Config, theirs: Config, step: int) -> bool:
    """True if the data of two runs have the same settings after a step; their files may be others."""
    was, now = (configs.at_phase(run, configs.phase_of(run, step + 1)) for run in (theirs, config))
    changed = [key for key, _, _ in configs.differences(was, now)]
    return not any(key == "seed" or key.startswith(("data.", "task.", "objective.")) for key in changed)


def expected_phase(config: Config, checkpoints: checkpoint.Checkpoints) -> int | None:
    """The phase that the run goes on in after `begin`, unless a checkpoint is damaged or a host has a newer one.

    None where the run has ended, or loads programs that are checked first.
    """
    source, step = config.init_from, max(checkpoints.finished_steps(), default=0)
    if not step and source is not None and source.state:
        step = checkpoint.find(source.path, source.step)[1]
    is_over = config.train.patience is not None and receipt(Path(config.run_dir)).get("finished", False)
    if step >= config.train.steps or is_over or config.train.compiled is not None:
        return None
    return configs.phase_of(config, step + 1)


def _resume(
    setup: Setup, checkpoints: checkpoint.Checkpoints, run_dir: Path, latest: int
) -> tuple[State, dict[str, Any] | None]:
    meta = checkpoints.meta(latest)
    _check_resumed(setup, run_dir, latest, run_dir / "checkpoints" / str(latest), meta)
    return checkpoints.restore(setup_at(setup, latest), latest), meta


def _check_resumed(setup: Setup, run_dir: Path, latest: int, place: str | Path, meta: dict[str, Any]) -> None:
    """Says where a run goes on from, and what has changed.

    Raises:
      UserError: the run is beyond `train.steps`, or its teachers have changed.
    """
    steps = setup.config.train.steps
    if latest > steps:  # its config.yaml would say fewer steps than it has
        raise UserError(
            f"train.steps: {steps} is below step {latest} that {run_dir} has reached; "
            "leave it out, or set run_dir=… for a new run"
        )
    say(f"resuming from step {latest} of {steps}: {place}")
    if changed := changes(setup.config):
        say(f"changed since the last start: {changed}")
    if (traced := setup.config.profile) is not None and latest >= traced.first:
        say(f"profile: step {traced.first} is behind the run: nothing is traced; profile.first={latest + 1} is next")
    teachers.check_same(setup, meta, f"{run_dir} at step {latest}")
    for line in edited(setup.config, meta):
        say(f"{run_dir / 'config.yaml'}: was changed since step {latest}: {line}")


def setup_at(setup: Setup, step: int) -> Setup:
    """The setup of the phase in which the state of a step was saved."""
    phase = configs.phase_of(setup.config, step)
    return setup.for_phase(configs.at_phase(setup.config, phase), phase)


def describe(setup: Setup, disk: int) -> str:
    """What is said of model and devices before the first step.

    Args:
      setup: of the run.
      disk: bytes that its checkpoints take at most.

    Returns:
      A line of parameters, devices and mesh, one of memory and disk, and one of large replicated parameters if any.
    """
    config, device = setup.config, jax.devices()[0]
    mesh = " × ".join(f"{axis} {size}" for axis, size in setup.mesh.shape.items() if size > 1) or "of one device"
    replicated = []
    if config.mesh.preset != "replicated":
        replicated = rules.large_replicated_params(setup.shapes.params, setup.shardings.params)
    part, _ = trainable.partition(setup.shapes.params, setup.trained)
    is_whole = part is setup.shapes.params
    trained = "" if is_whole else f", {sum(x.size for x in jax.tree.leaves(part)):,} trained"
    total, active = setup.network.count_params(), setup.network.count_active_params()
    of_token = "" if active == total else f", {active:,} of them for a token"
    return (
        f"{total:,} parameters{of_token}{trained}; "
        f"{jax.device_count()} × {device.device_kind}, mesh {mesh}, "
        f"computing in {jnp.dtype(base.compute_dtype(config.model)).name}\n"
        f"state {per_device_size(setup) / 1e6:.1f} MB a device; checkpoints take up to {disk / 1e9:.2f} GB"
        + (f"\nlarge and fully replicated (mesh.rules can shard them): {', '.join(replicated)}" if replicated else "")
    )


Labels = dict[str, tuple[str, ...] | None]
"""{name of a head whose outputs are labels: the labels in their order; None of a number}."""


def labels_of(path: str | Path) -> Labels:
    """The labels of a fine-tuned model's heads.

    Args:
      path: a run_dir, one of its `checkpoints/STEP`, or a directory in Hugging Face's form.
    """
    if reader := foreign.reader(path):
        return dict.fromkeys(("classes", "tags"), reader.labels(Path(path)))
    named = checkpoint.named_step(path)
    return head_labels(configs.load(named[0] if named else path))


def head_labels(config: Config) -> Labels:
    """The labels of the heads of a recipe."""
    if config.task is None:
        return {}
    tasks = {name or None: task_config.task for name, task_config in each_task(config).items()}
    return {
        classes.called(task.head, name): getattr(task, "labels", None)
        for name, task in tasks.items()
        if getattr(task, "head", None) in ("classes", "tags")
    }


def start(setup: Setup, source: InitConfig, say: Callable[[str], None]) -> State:
    """A fresh state with weights from `source`, each placed as soon as it is read.

    A parameter is taken where the source has one of its name and shape; of a stack that a directory has in part the
    layers that are there. A task's model takes the heads that fit, and
    that of the labels where the source has the same labels in the same order; a pretraining head's layer that has the
    name of a pooler in Hugging Face's classes (ModernBERT) is that pooler. Along the vocabulary, `source.vocabulary`
    says what happens to another number of rows; rows for `data.tokenizer.add_tokens` alone are new in any case. A
    longer table of positions begins with the shorter one and repeats it; a shorter one is its beginning. Of a run of
    GloVe or with n-grams, a table of word vectors gets those that the run gives away.

    Args:
      setup: of the run.
      source: where the weights are.
      say: is given lines for the user.

    Returns:
      The state at step 0.

    Raises:
      UserError: without `source.partial`, where a parameter is missing, of another shape or left over; with it, where
        nothing fits; the source is damaged, or a parameter of it is not finite.
    """
    arrays, theirs, name = weights.open_weights(source.path, source.step, True, setup.config.checkpoint)
    if source.upcycle:
        upcycle.check(source.path, theirs, setup.config.model)
        arrays = upcycle.experts(arrays, setup.config.model)
    arrays = _with_word_vectors(setup.config, source, arrays, say)
    source, grows = _vocabulary_rule(setup.config, source, theirs.config.vocab_size)
    old_pieces = vocabularies.old_pieces(setup.config, source) if source.vocabulary == "mean" else {}
    old_rows = vocabularies.rows_by_token(setup.config, source) if source.vocabulary == "tokens" else None
    expected, state = stored_params(setup.network), setup.init()
    drawn = _drawn(setup.config, source, expected)
    flat = traverse_util.flatten_dict(state.params, sep="/")
    taken, fitted, unused, missing_layers = _take(setup, source, arrays, theirs, drawn, flat, old_pieces, old_rows)
    new = [path for path in expected if path not in taken and path not in fitted] + missing_layers
    lacking = [path for path in new if path not in drawn]
    _check_taken(setup.config, source, theirs.config, lacking, unused, bool(taken or fitted))
    say(f"starting from {name}: {len(taken)} of {len(expected)} parameters taken as they are")
    if grows:
        old, size = theirs.config.vocab_size, setup.config.model.vocab_size
        say(f"  vocabulary: rows 0 to {old - 1} as they are, {old} to {size - 1} new (add_tokens)")
        if not trains_vocabulary(setup.layout):
            say("  the new rows stay as they are drawn: train.trainable or train.lora leaves the table out")
    if old_pieces:
        say(f"  vocabulary: {len(old_pieces)} new tokens, the row of each the mean of its old pieces' rows")
    if old_rows is not None:
        known = int((old_rows >= 0).sum())
        say(f"  vocabulary: {known} of {len(old_rows)} tokens have their rows, the others the mean of all rows")
    if source.layers is not None:
        say(f"  layers: {', '.join(f'{mine} ← {source_layer}' for mine, source_layer in enumerate(source.layers))}")
    trained = setup.layout.ever_trained()
    frozen = [path for path in new if path.startswith("heads/") and not trained[path].any()]
    for status, paths in (
        ("fitted", fitted), ("new", new), ("not used", unused), ("not trained, though new (train.trainable)", frozen),
    ):  # fmt: skip
        if paths:
            say(f"  {status}: {', '.join(paths)}")
    return from_params(setup, state, traverse_util.unflatten_dict(flat, sep="/"))


def _with_word_vectors(
    config: Config, source: InitConfig, arrays: Iterator[tuple[str, np.ndarray]], say: Callable[[str], None]
) -> Iterator[tuple[str, np.ndarray]]:
    """The source's parameters, for a task on word vectors with those that its objective makes of all its tables."""
    if config.task is None or config.model.kind != "word_vectors" or foreign.reader(source.path):
        return arrays
    run_dir, _ = checkpoint.find(source.path, source.step)
    theirs = configs.load(run_dir)
    if not isinstance(theirs.objective, RowObjective):
        return arrays
    tables = dict(arrays)
    tokenizer = tokenizers.load(run_dir / "tokenizer", theirs.data.tokenizer.kind)
    if (table := vocabularies.published_table(theirs.objective, tokenizer, tables)) is not None:
        tables[TOKENS] = table
        say(f"{TOKENS}: the word vectors that `jaxpt export {source.path}` writes, made of all tables of the run")
    return iter(tables.items())


def _take(
    setup: Setup,
    source: InitConfig,
    arrays: Iterator[tuple[str, np.ndarray]],
    theirs: Network,
    drawn: set[str],
    flat: dict[str, jax.Array],
    old_pieces: Mapping[int, list[int]],
    old_rows: np.ndarray | None,
) -> tuple[list[str], list[str], list[str], list[str]]:
    """Puts parameters of the source into `flat`; the paths of those taken as they are, fitted, and not used, and
    "path[layers]" of fitted ones whose other layers the source has."""
    expected, taken, fitted, unused, missing_layers = stored_params(setup.network), [], [], [], []
    common = min(theirs.config.vocab_size, setup.config.model.vocab_size)
    renamed: dict[str, str] = {}
    for reader in foreign.readers():
        renamed |= reader.renamed(theirs, setup.network)
    for path, array in arrays:
        path = renamed.get(path, path)
        if path in drawn:
            continue
        place = expected.get(path)
        if source.layers is not None and place is not None and place.axes[:1] == ("layers",):
            array = _chosen(array, source, theirs, path)
        fresh = flat.get(path)  # None in a stack that is split
        fit = None if place is None else _fit(array, fresh, place, common, source.vocabulary)
        if fit is not None and old_pieces and "vocab" in place.axes:
            fit = _with_means(fit, array, place.axes.index("vocab"), old_pieces)
        if fit is not None and old_rows is not None and "vocab" in place.axes:
            fit = _by_token(fit, array, place.axes.index("vocab"), old_rows, theirs.config.vocab_size)
        if fit is None:
            unused.append(path)
            continue
        is_missing = np.ma.getmask(fit)
        if is_missing.all():
            continue
        if is_missing.any():
            missing_layers.append(f"{path}{np.flatnonzero(is_missing.reshape(len(fit), -1).all(1)).tolist()}")
        (taken if fit is array and not is_missing.any() else fitted).append(path)
        for piece, at in parts.places(path, setup.layout.parts):
            flat[piece] = _in_place_of(flat[piece], fit[at])
    return taken, fitted, unused, missing_layers


def _in_place_of(drawn: jax.Array, array: np.ndarray) -> jax.Array:
    """A parameter of the source where the drawn one was, of which the layers stay that the source lacks."""
    new, is_missing = weights.placed(array, drawn.sharding), np.ma.getmask(array)
    return jax.jit(jnp.where, out_shardings=drawn.sharding)(is_missing, drawn, new) if is_missing.any() else new


def _vocabulary_rule(config: Config, source: InitConfig, their_size: int) -> tuple[InitConfig, bool]:
    """(`source` with the rule for rows of the vocabulary, True if only `data.tokenizer.add_tokens` get new rows)"""
    vocab_size, added = config.model.vocab_size, len(config.data.tokenizer.add_tokens)
    if source.vocabulary != "same" or their_size == vocab_size:
        return source, False
    if their_size < vocab_size <= their_size + added:
        return source.model_copy(update={"vocabulary": "first"}), True
    raise UserError(
        f"init_from.path: {source.path}: its vocabulary has {their_size} ids, model.vocab_size is {vocab_size}; "
        "init_from.vocabulary=first takes the rows of the ids that both have, =mean for an extended vocabulary besides "
        "means of old rows, =tokens the rows of equal tokens, =new draws all rows"
    )


def _drawn(config: Config, source: InitConfig, expected: Mapping[str, StoredParam]) -> set[str]:
    """Paths of the parameters that are not to be taken: tables of a new vocabulary, heads of other labels."""
    drawn = {path for path, place in expected.items() if source.vocabulary == "new" and "vocab" in place.axes}
    if source.upcycle:
        drawn |= {path for path in expected if path.endswith("/router/kernel")}
    labels = head_labels(config)
    known = labels_of(source.path) if labels else {}
    for head in (name for name, label_names in labels.items() if name not in known or known[name] != label_names):
        drawn |= {path for path in expected if path.startswith(f"heads/{head}/")}
    return drawn


def _check_taken(
    config: Config, source: InitConfig, theirs: ModelConfig, lacking: list[str], unused: list[str], fits: bool
) -> None:
    """Raises UserError if parameters are missing or left over, or nothing fits."""
    wrong = lacking or unused
    if config.task is not None:  # heads of pretraining are left behind, those of the task are new
        lacking = [path for path in lacking if not path.startswith("heads/")]
        wrong = lacking or [path for path in unused if not path.startswith("heads/")]
    if wrong and not source.partial:
        status = "lacks or has in another shape" if lacking else "has, this model has not,"
        raise UserError(
            f"init_from.path: {source.path} {status} {listed(wrong)}; {_differences(config.model, theirs)}"
            "init_from.partial=true takes what fits"
        )
    if not fits:
        raise UserError(
            f"init_from.partial: {source.path}: none of its parameters fits this model, which would start at random; "
            f"it has {listed(unused) or 'none that were asked for'}"
        )


def _differences(mine: ModelConfig, theirs: ModelConfig) -> str:
    """Words on the source's kind of model, or its sizes, where they are others than the recipe's."""
    if mine.kind != theirs.kind:
        return f"its model has model.kind={theirs.kind}; "
    added_fields = [name for name in type(theirs).model_fields if name not in ModelConfig.model_fields]
    sizes = {name: getattr(theirs, name) for name in added_fields if isinstance(getattr(theirs, name), int)}
    others = [f"model.{name}={str(x).lower()}" for name, x in sizes.items() if getattr(mine, name, None) != x]
    return f"its model has {' '.join(others)}; " if others else ""


def trains_vocabulary(layout: trainable.Layout) -> bool:
    """True if some phase trains a table with a row for each token."""
    trained = layout.ever_trained()
    return any(
        "vocab" in leaf.axes and trained[path].any()
        for path, leaf in layout.tree.items()
        if not path.startswith(f"{lora.ADAPTER}/")
    )


def from_params(setup: Setup, fresh: State, params: Any) -> State:
    """A fresh state with other parameters of the model; its adapters stay.

    Args:
      setup: of the run.
      fresh: at step 0; an optimizer state that was made of its parameters is deleted.
      params: the model's, segments split as the setup says.
    """
    params = trainable.merge(fresh.params, params)
    trained, _ = trainable.partition(params, setup.trained)
    ema = None if fresh.ema is None else jax.tree.map(jnp.copy, trained)
    opt_state = fresh.opt_state
    if optimizers.init_reads_params(setup.optimizer, trainable.partition(setup.shapes.params, setup.trained)[0]):
        for leaf in jax.tree.leaves(opt_state):  # before the new one takes as much memory
            leaf.delete()
        with setup.use():
            opt_state = jax.jit(setup.optimizer.init, out_shardings=setup.shardings.opt_state)(trained)
    return fresh.replace(params=params, opt_state=opt_state, ema=ema)


def _chosen(array: np.ndarray, source: InitConfig, theirs: Network, path: str) -> np.ndarray:
    """The layers of the source that were asked for."""
    places, where = stored_params(theirs), f"init_from.layers: {source.path}"
    stack = path.partition("/segment_")[0]
    if any(p.startswith((f"{stack}/segment_1/", f"{stack}/segment_0/block_1/")) for p in places):
        raise UserError(f"{where}: its layers are of several kinds, which cannot stand for each other")
    if places[path].axes[:1] != ("layers",):
        raise UserError(f"{where}: its layers share their parameters, there are none to choose from")
    beyond = [layer for layer in source.layers if layer >= len(array)]
    if beyond:
        raise UserError(f"{where}: has the layers 0 to {len(array) - 1}, no layer {beyond[0]}")
    return array[list(source.layers)]


def _fit(
    array: np.ndarray, fresh: jax.Array | None, place: StoredParam, common: int, vocabulary: str
) -> np.ndarray | None:
    """The parameter in the shape wanted: `array` itself where nothing is to be done, None where it cannot be."""
    if "vocab" in place.axes:
        axis = place.axes.index("vocab")
        if _without(array.shape, axis) != _without(place.shape, axis):
            return None
        if array.shape[axis] == place.shape[axis] == stored_rows(common) and vocabulary == "same":
            return array
        rows = (slice(None),) * axis + (slice(common),)
        whole = np.array(fresh)
        whole[rows] = array[rows]
        return whole
    if array.shape == place.shape:
        return array
    if "positions" in place.axes and array.ndim == len(place.shape):
        axis = place.axes.index("positions")
        if _without(array.shape, axis) == _without(place.shape, axis):
            return np.take(array, np.arange(place.shape[axis]) % array.shape[axis], axis)
    return None


def _with_means(fit: np.ndarray, array: np.ndarray, axis: int, old_pieces: Mapping[int, list[int]]) -> np.ndarray:
    """A table, or a bias, in which the row of each new token is the mean of the source's rows of its old pieces."""
    table, rows = np.moveaxis(np.array(fit), axis, 0), np.moveaxis(array, axis, 0)
    for token, pieces in old_pieces.items():
        table[token] = rows[pieces].mean(axis=0, dtype=np.float32)
    return np.moveaxis(table, 0, axis)


def _by_token(fit: np.ndarray, array: np.ndarray, axis: int, old_rows: np.ndarray, old_size: int) -> np.ndarray:
    """A table, or a bias, with the source's rows of the tokens that it has, and the mean of all its rows for others."""
    table, rows = np.moveaxis(np.array(fit), axis, 0), np.moveaxis(array, axis, 0)
    table[: len(old_rows)] = rows[np.maximum(old_rows, 0)]
    table[: len(old_rows)][old_rows < 0] = rows[:old_size].mean(axis=0, dtype=np.float32)
    return np.moveaxis(table, 0, axis)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])
