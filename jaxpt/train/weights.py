"""Weights of checkpoints, written and read a parameter (and a layer) at a time."""

from __future__ import annotations

import collections
import functools
import itertools
import logging
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from flax import traverse_util

from jaxpt import config as configs
from jaxpt.config import CheckpointConfig
from jaxpt.errors import StorageError, UserError
from jaxpt.models import parts
from jaxpt.models.network import Network
from jaxpt.models.stored import Piece, finite
from jaxpt.train import checkpoint, checksums, foreign, handlers, lora, stored

STEP = 0


def write(
    run_dir: Path,
    network: Network,
    dtypes: Mapping[str, Any],
    pieces: Iterator[Piece],
    seed: int = 0,
    adapter: Mapping[str, np.ndarray] | None = None,
) -> dict[str, tuple[int, ...]]:
    """Writes `run_dir/checkpoints/0` as Orbax would, but never more than one piece is in memory.

    Args:
      run_dir: an existing directory, without checkpoints.
      network: whose parameters they are.
      dtypes: {path: dtype on the disk} of the parameters that `pieces` has.
      pieces: (path, layer or None, array in the shape of storage); of one that comes twice the last counts.
      seed: of the parameters that `pieces` lacks.
      adapter: {path: factor} of a low-rank adapter, "adapter/…/a" and "adapter/…/b".

    Returns:
      {path of a parameter that was drawn at random: its layers that were; () if all of it was}.
    """
    model = traverse_util.flatten_dict(network.shapes(), sep="/")
    adapter = adapter or {}
    shapes: Mapping[str, Any] = model | adapter
    run_dir = run_dir.resolve()  # TensorStore refuses a path with ".."
    state = run_dir / "checkpoints" / str(STEP) / "state"
    _check_space(run_dir, shapes, dtypes)
    _skeleton(run_dir, {path: np.zeros((1,), dtypes.get(path, np.float32)) for path in shapes})

    @functools.cache
    def array(path: str) -> tensorstore.TensorStore:
        return _open_array(state / f"params.{path.replace('/', '.')}", path, shapes[path], dtypes.get(path, np.float32))

    layers: dict[str, set[int]] = collections.defaultdict(set)
    for path, layer, x in itertools.chain(pieces, ((path, None, x) for path, x in adapter.items())):
        (array(path) if layer is None else array(path)[layer]).write(x).result()
        layers[path] |= set(range(shapes[path].shape[0])) if layer is None else {layer}
    lacking = _lacking(model, layers)
    for path, missing in lacking.items():
        draw = jax.jit(lambda key, path=path: traverse_util.flatten_dict(network.init(key), sep="/")[path])
        x = np.asarray(draw(jax.random.key(seed)))
        for place in missing or (slice(None),):
            array(path)[place].write(x[place]).result()
    if reason := handlers.unreadable(state):
        raise UserError(reason)
    owner = {"run": checkpoint.run_id(run_dir / "checkpoints"), "step": STEP}
    for part in ("state", "meta"):
        checksums.write(state.parent / part, owner)
    return lacking


def _lacking(shapes: Mapping[str, Any], layers: Mapping[str, set[int]]) -> dict[str, tuple[int, ...]]:
    """{path of a parameter that was not written in full: the layers that it lacks; () if it lacks all}.

    Args:
      shapes: {path: its shape} of all parameters.
      layers: {path: what of its first axis was written}.
    """
    incomplete = {path: layers.get(path, set()) for path in shapes if len(layers.get(path, ())) < shapes[path].shape[0]}
    return {
        path: tuple(n for n in range(shapes[path].shape[0]) if n not in have) if have else ()
        for path, have in incomplete.items()
    }


def _open_array(file: Path, path: str, shape: Any, dtype: Any) -> tensorstore.TensorStore:
    """The array of a parameter, made anew; Orbax reads a parameter's true shape from the array's own metadata."""
    metadata = {
        "shape": list(shape.shape),
        "chunks": [1, *shape.shape[1:]] if "/segment_" in path else list(shape.shape),
        "dtype": "bfloat16" if np.dtype(dtype) == jnp.bfloat16 else np.dtype(dtype).str,
        "compressor": None,
    }
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(file)}, "metadata": metadata}
    return tensorstore.open(spec, create=True, delete_existing=True).result()


def _check_space(run_dir: Path, shapes: Mapping[str, Any], dtypes: Mapping[str, Any]) -> None:
    """Raises StorageError where the disk has no room: if it is full in the middle, threads of Orbax fail loudly."""
    file_system = os.statvfs(run_dir)
    block, needed = file_system.f_frsize, 1 << 16
    for path, shape in shapes.items():
        files = shape.shape[0] if "/segment_" in path else 1
        size = math.prod(shape.shape) // files * np.dtype(dtypes.get(path, np.float32)).itemsize
        needed += files * -(-size // block) * block + 2 * block
    free = file_system.f_bavail * block
    if needed > free:
        raise StorageError(f"{run_dir.parent}: the weights take {needed:,} bytes, the disk has {free:,} left")


def _skeleton(run_dir: Path, flat: Mapping[str, np.ndarray]) -> None:
    """A committed checkpoint with the right names and arrays of one element."""
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    registry.add("state", ocp.args.PyTreeSave, ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_zarr3=False))
    registry.add("meta", ocp.args.JsonSave, ocp.JsonCheckpointHandler())
    params = traverse_util.unflatten_dict(dict(flat), sep="/")
    counts = dict.fromkeys(("step", "skipped", "skipped_total"), np.zeros((), np.int32))
    state = {**counts, "params": params, "opt_state": None, "ema": None}
    args = ocp.args.Composite(state=ocp.args.PyTreeSave(state), meta=ocp.args.JsonSave({"phase": 0, "data": {}}))
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)  # Orbax warns of a format that was chosen on purpose
    try:
        with ocp.CheckpointManager(run_dir / "checkpoints", handler_registry=registry) as manager:
            manager.save(STEP, args=args)
    finally:
        log.setLevel(level)


class Saved(Mapping[str, np.ndarray]):
    """The model's parameters in a checkpoint by path, each read when asked for: their average where there is one,
    segments joined that were split, adapters merged.

    A parameter with NaN or infinity in it is refused by name when its turn comes.

    Attributes:
      dtypes: {path: dtype on the disk}.
    """

    def __init__(self, run_dir: Path, step: int, settings: CheckpointConfig | None = None) -> None:
        """Opens `run_dir/checkpoints/STEP` and verifies it.

        Args:
          run_dir: of the run.
          step: of the checkpoint.
          settings: what is compared before it is read; the run's own by default.

        Raises:
          UserError: it is damaged, of another step or run, or not of the model in the run's config.yaml.
        """
        config = configs.load(run_dir)
        with checkpoint.Checkpoints(run_dir, settings or config.checkpoint, read_only=True) as saved:
            saved.check(step)
        self._path = run_dir.absolute() / "checkpoints" / str(step) / "state"
        self._handler = handlers.ArraysHandler()
        tree = self._handler.metadata(self._path).tree
        network = config.objective.network(config.model)
        self._found = stored.sources(tree)
        shapes = stored.shapes(self._found)
        stored.compare_model(self._path.parent, shapes, network.shapes())
        stored.compare_step(self._path.parent, self._read("step", tree["step"]))
        self._adapter = stored.adapter(run_dir, self._found)
        self._pieces = parts.gathered(path for path in self._found if not stored.is_adapter(path))
        self.dtypes = {path: np.dtype(x.dtype) for path, x in traverse_util.flatten_dict(shapes, sep="/").items()}

    def __getitem__(self, path: str) -> np.ndarray:
        pieces = [self._piece(piece) for piece in self._pieces[path]]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _piece(self, path: str) -> np.ndarray:
        """A parameter as it is stored, with its adapter's product where it has one."""
        w = self._array(path)
        a, b = (f"{lora.ADAPTER}/{path}/{name}" for name in ("a", "b"))
        return lora.added(self._adapter, path, w, self._array(a), self._array(b)) if a in self._found else w

    def _array(self, path: str) -> np.ndarray:
        key, x = self._found[path]
        try:
            return finite(path, self._read(f"{key}/{path}", x))
        except UserError as error:
            raise UserError(f"{self._path.parent}: {error}") from None

    def factors(self, split: parts.Parts) -> dict[str, lora.Factors]:
        """The low-rank adapter: {path of a matrix: its factors}.

        Args:
          split: how the run stores its segments.
        """
        factors: dict[str, lora.Factors] = {}
        for path in self._pieces:
            for place, at in parts.places(path, split):
                names = [f"{lora.ADAPTER}/{place}/{name}" for name in ("a", "b")]
                if names[0] not in self._found:
                    continue
                a, b = (self._array(name) for name in names)
                if a.ndim == 2:
                    factors[path] = lora.Factors(np.ones((), bool), a, b)
                    continue
                layers = sum(self._found[piece][1].shape[0] for piece in self._pieces[path])
                zeros = lora.Factors(
                    *(
                        np.zeros((layers, *x), t)
                        for x, t in (((), bool), (a.shape[1:], a.dtype), (b.shape[1:], b.dtype))
                    )
                )
                matrix_factors = factors.setdefault(path, zeros)
                matrix_factors.held[at], matrix_factors.a[at], matrix_factors.b[at] = True, a, b
        return factors

    def _read(self, path: str, metadata: Any) -> np.ndarray:
        """One array of the state."""
        shape = jax.ShapeDtypeStruct(tuple(metadata.shape), metadata.dtype)
        item = traverse_util.unflatten_dict({path: shape}, sep="/")
        as_numpy = traverse_util.unflatten_dict({path: ocp.RestoreArgs(restore_type=np.ndarray)}, sep="/")
        args = ocp.args.PyTreeRestore(item=item, restore_args=as_numpy, partial_restore=True)
        tree = self._handler.restore(self._path, args=args)
        return np.asarray(traverse_util.flatten_dict(tree, sep="/")[path])

    def __iter__(self) -> Iterator[str]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)


def read(run_dir: str | Path, step: int) -> dict[str, Any]:
    """All parameters of a checkpoint as NumPy arrays: {"model": {…}, "heads": {…}}."""
    return traverse_util.unflatten_dict(dict(Saved(Path(run_dir), step)), sep="/")


def open_weights(
    path: str | Path, step: int | None = None, partial: bool = False, settings: CheckpointConfig | None = None
) -> tuple[Iterator[tuple[str, np.ndarray]], Network, str]:
    """A model's weights, one parameter at a time.

    Args:
      path: a run_dir, one of its `checkpoints/STEP`, or a directory in Hugging Face's form.
      step: which checkpoint; by default the newest, of a finished run with a task the best.
      partial: a Hugging Face directory may lack tensors, or have others; missing layers are masked, as
        `foreign.Opened` says.
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

    def parameters() -> Iterator[tuple[str, np.ndarray]]:
        yield from Saved(run_dir, step, settings).items()

    return parameters(), config.objective.network(config.model), f"{run_dir} at step {step}"


def placed(array: np.ndarray, sharding: Any) -> jax.Array:
    """A parameter in float32 where it belongs, each device its own part."""
    array = np.asarray(array, np.float32)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
