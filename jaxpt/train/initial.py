"""A run that starts from weights made elsewhere, whole or in part: what was taken is said, and what is new."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from jaxpt import config as configs
from jaxpt.config import CheckpointConfig, Config, InitConfig
from jaxpt.data.parts import each_task
from jaxpt.errors import UserError
from jaxpt.models import parts
from jaxpt.models.heads import classes
from jaxpt.models.layers import stored_rows
from jaxpt.models.network import Network
from jaxpt.models.stored import StoredParam, stored_params
from jaxpt.train import checkpoint, foreign, trainable, weights
from jaxpt.train.state import Setup, State

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

    A parameter is taken where the source has one of its name and shape. A task's model takes the heads that fit, and
    that of the labels where the source has the same labels in the same order; a pretraining head's layer that has the
    name of a pooler in Hugging Face's classes (ModernBERT) is that pooler. Along the vocabulary, `source.vocabulary`
    says what happens to another number of rows; rows for `data.tokenizer.add_tokens` alone are new in any case. A
    longer table of positions begins with the shorter one and repeats it; a shorter one is its beginning.

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
    expected, vocab_size = stored_params(setup.network), setup.config.model.vocab_size
    added = len(setup.config.data.tokenizer.add_tokens)
    arrays, theirs, name = open_weights(source.path, source.step, partial=True, settings=setup.config.checkpoint)
    their_size = theirs.config.vocab_size
    grows = source.vocabulary == "same" and their_size < vocab_size <= their_size + added
    if grows:
        source = source.model_copy(update={"vocabulary": "first"})
    if their_size != vocab_size and source.vocabulary == "same":
        raise UserError(
            f"init_from.path: {source.path}: its vocabulary has {their_size} ids, model.vocab_size is {vocab_size}; "
            "init_from.vocabulary=first takes the rows of the ids that both have, =new draws all rows"
        )
    state = setup.init()
    flat = traverse_util.flatten_dict(state.params, sep="/")
    wished = {path for path, place in expected.items() if source.vocabulary == "new" and "vocab" in place.axes}
    labels = head_labels(setup.config)
    known = labels_of(source.path) if labels else {}
    for head in (name for name, label_names in labels.items() if name not in known or known[name] != label_names):
        wished |= {path for path in expected if path.startswith(f"heads/{head}/")}
    taken, fitted, unused = [], [], []
    renamed: dict[str, str] = {}
    for reader in foreign.readers():
        renamed |= reader.renamed(theirs, setup.network)
    for path, array in arrays:
        path = renamed.get(path, path)
        if path in wished:
            continue
        place = expected.get(path)
        if source.layers is not None and place is not None and place.axes[:1] == ("layers",):
            array = _chosen(array, source, theirs, path)
        fresh = flat.get(path)  # None in a stack that is split
        fit = None if place is None else _fit(array, fresh, place, min(their_size, vocab_size), source.vocabulary)
        if fit is None:
            unused.append(path)
            continue
        (taken if fit is array else fitted).append(path)
        for piece, at in parts.places(path, setup.layout.parts):
            flat[piece] = placed(fit[at], flat[piece].sharding)
    new = [path for path in expected if path not in taken and path not in fitted]
    lacking = [path for path in new if path not in wished]
    if setup.config.task is None:
        wrong = lacking or unused
    else:  # heads of pretraining are left behind, those of the task are new
        lacking = [path for path in lacking if not path.startswith("heads/")]
        wrong = lacking or [path for path in unused if not path.startswith("heads/")]
    if wrong and not source.partial:
        status = "lacks or has in another shape" if lacking else "has, this model has not,"
        raise UserError(
            f"init_from.path: {source.path} {status} {_some(wrong)}; init_from.partial=true takes what fits"
        )
    if not taken and not fitted:
        raise UserError(
            f"init_from.partial: {source.path}: none of its parameters fits this model, which would start at random; "
            f"it has {_some(unused) or 'none that were asked for'}"
        )
    say(f"starting from {name}: {len(taken)} of {len(expected)} parameters taken as they are")
    if grows:
        say(f"  vocabulary: rows 0 to {their_size - 1} as they are, {their_size} to {vocab_size - 1} new (add_tokens)")
        if not trains_vocabulary(setup.layout, setup.network):
            say("  the new rows stay as they are drawn: train.trainable or train.lora leaves the table out")
    if source.layers is not None:
        say(f"  layers: {', '.join(f'{mine} ← {source_layer}' for mine, source_layer in enumerate(source.layers))}")
    for status, paths in (("fitted", fitted), ("new", new), ("not used", unused)):
        if paths:
            say(f"  {status}: {', '.join(paths)}")
    params = traverse_util.unflatten_dict(flat, sep="/")
    return from_params(setup, state, params)


def trains_vocabulary(layout: trainable.Layout, network: Network) -> bool:
    """True if some phase trains a table with a row for each token."""
    axes = network.logical_axes()
    trained, named = layout.ever_trained(network.shapes(), axes), traverse_util.flatten_dict(axes, sep="/")
    return any("vocab" in names and trained[path].any() for path, names in named.items())


def from_params(setup: Setup, fresh: State, params: Any) -> State:
    """A fresh state with other parameters of the model; its adapters stay.

    Args:
      setup: of the run.
      fresh: at step 0.
      params: the model's, segments split as the setup says.
    """
    params = trainable.put(fresh.params, params)
    ema = None if fresh.ema is None else jax.tree.map(jnp.copy, trainable.take(params, setup.trained))
    return fresh.replace(params=params, ema=ema)


def open_weights(
    path: str | Path, step: int | None = None, partial: bool = False, settings: CheckpointConfig | None = None
) -> tuple[Iterator[tuple[str, np.ndarray]], Network, str]:
    """A model's weights, one parameter at a time.

    Args:
      path: a run_dir, one of its `checkpoints/STEP`, or a directory in Hugging Face's form.
      step: which checkpoint; the newest by default.
      partial: a Hugging Face directory may lack tensors, or have others.
      settings: what of a checkpoint is compared before it is read; its run's own by default.

    Returns:
      (parameters by path, the backbone and its heads, what it is). A checkpoint is verified when the first parameter is
      asked for.

    Raises:
      UserError: there is no such thing; while reading, it is damaged or a parameter is not finite.
    """
    if reader := foreign.reader(path):
        opened = reader.open(Path(path), partial)
        return opened.parameters, opened.network, str(path)
    run_dir, step = checkpoint.find(path, step)
    config = configs.load(run_dir)
    return _verified(run_dir, step, settings), config.objective.network(config.model), f"{run_dir} at step {step}"


def _verified(run_dir: Path, step: int, settings: CheckpointConfig | None) -> Iterator[tuple[str, np.ndarray]]:
    yield from weights.Saved(run_dir, step, settings).items()


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


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def placed(array: np.ndarray, sharding: Any) -> jax.Array:
    """A parameter in float32 where it belongs, each device its own part."""
    array = np.asarray(array, np.float32)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def _some(paths: list[str]) -> str:
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
