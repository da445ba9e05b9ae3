"""A linear probe: a linear classifier predicts the label of a text from the hidden states of a frozen model.

It is the same for all three families, so models with different objectives are comparable: the features are the last
hidden states of the encoder (of the decoder in decoder-only models), averaged over the tokens. The report also has the
accuracy of the most frequent label, and of the same probe on the untrained model.
"""

from __future__ import annotations

import csv
import functools
import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.config.studies import Probe
from jaxpt.errors import UserError
from jaxpt.evals.base import Evaluate, Evaluator, Result
from jaxpt.models.network import Network
from jaxpt.objectives.base import Vocabulary
from jaxpt.parallel.distributed import to_host
from jaxpt.train import checkpoint, state
from jaxpt.train.run_dir import write_text
from jaxpt.train.state import Setup

if TYPE_CHECKING:
    from jaxpt.data.datasets import Data
    from jaxpt.data.tokenizers import Tokenizer

_BATCH = 256
_ITERATIONS = 100


class LinearProbe(Evaluator, Probe):
    """Accuracy of a linear probe on labelled texts, and of the most frequent label."""

    kind: Literal["probe"] = "probe"

    def prepare(self, setup: Setup, data: Data) -> Evaluate:
        task = _task(self, data.tokenizer, setup.config)
        accuracy = _accuracy(setup.for_evaluation(), task)

        def evaluate(params: Any, earlier: Mapping[str, float], stop: Callable[[], bool]) -> Result | None:
            found = accuracy(params, stop)
            return None if found is None else Result({"accuracy": found, "most_frequent": task.most_frequent})

        return evaluate


class _Task(NamedTuple):
    """Labelled texts: (training, test)."""

    tokens: tuple[np.ndarray, np.ndarray]
    """int32 [texts, length] each, −1 on padding."""
    labels: tuple[np.ndarray, np.ndarray]
    """int [texts] each; −1 for labels that do not occur in the training texts."""
    classes: int
    l2: float

    @property
    def most_frequent(self) -> float:
        """Test accuracy of the most frequent training label."""
        return float((self.labels[1] == np.bincount(self.labels[0]).argmax()).mean())


def _task(settings: Probe, tokenizer: Tokenizer, config: Config) -> _Task:
    train, test = (_read(Path(path), settings) for path in (settings.path, settings.test_path))
    labels = {label: n for n, label in enumerate(sorted(set(train[1])))}
    tokens = (
        _rows(tokenizer.encode_batch(texts), tokenizer.vocabulary, config.model.family, config.data.length)
        for texts, _ in (train, test)
    )
    numbers = (np.array([labels.get(label, -1) for label in names]) for _, names in (train, test))
    return _Task(tuple(tokens), tuple(numbers), len(labels), settings.l2)


def _accuracy(setup: Setup, task: _Task) -> Callable[[Any, Callable[[], bool]], float | None]:
    """Compiles the probe; returns a function from parameters to test accuracy (None if stopped)."""
    network, family = setup.network, setup.config.model.family
    batch = jax.ShapeDtypeStruct((_BATCH, setup.config.data.length), jnp.int32)
    with setup.use():
        lowered = _mean.lower(network, family, setup.placed_shapes().params, batch)
        mean = lowered.compile()
    (x_train, x_test), (y_train, y_test) = task.tokens, task.labels
    x = jax.ShapeDtypeStruct((len(x_train), lowered.out_info.shape[-1]), jnp.float32)
    fit = _fit.lower(x, jax.ShapeDtypeStruct(y_train.shape, jnp.int32), task.classes, task.l2).compile()

    def accuracy(params: Any, stop: Callable[[], bool] = lambda: False) -> float | None:
        with setup.use():
            found = [pooled(network, params, family, tokens, mean, stop) for tokens in (x_train, x_test)]
        if any(states is None for states in found):
            return None
        guess = classify(found[0], y_train, found[1], task.classes, task.l2, fit)
        return float((guess == y_test).mean())

    return accuracy


def probe(path: str, settings: Probe) -> dict[str, float]:
    """`jaxpt probe`: trains the classifier on one labelled file and evaluates it on another.

    Args:
      path: a run_dir (the newest checkpoint), or `RUN_DIR/checkpoints/STEP`.
      settings: the files, and their text and label fields.

    Returns:
      {"accuracy", "untrained", "most_frequent"}, accuracies on the test file; also written to
      RUN_DIR/evaluations/probe.json, with the step and the settings.

    Raises:
      UserError: there is no checkpoint, or a file cannot be read.
    """
    from jaxpt.data import tokenizers
    from jaxpt.train.display import console

    run_dir, step = checkpoint.find(path, None)
    config = configs.load(run_dir)
    task = _task(settings, tokenizers.load(run_dir / "tokenizer", config.data.tokenizer.kind), config)
    setup = state.setup(config)
    accuracy = _accuracy(setup.for_evaluation(), task)
    reader = checkpoint.Checkpoints(run_dir, config.checkpoint, read_only=True)
    means = {
        "accuracy": accuracy(reader.restore_params(setup, step)),
        "untrained": accuracy(setup.to_model(setup.init())),
    }
    reader.close()
    means["most_frequent"] = task.most_frequent
    (run_dir / "evaluations").mkdir(exist_ok=True)
    saved = {"step": step, "settings": settings.model_dump(mode="json"), **means}
    write_text(run_dir / "evaluations" / "probe.json", json.dumps(saved, indent=2) + "\n")
    console.print(
        f"{run_dir} at step {step}, linear probe of {task.classes} labels, {len(task.labels[1]):,} test texts: "
        f"accuracy {means['accuracy']:.1%}, untrained model {means['untrained']:.1%}, "
        f"most frequent label {means['most_frequent']:.1%}",
        markup=False,
    )
    return means


def pooled(
    network: Network,
    params: Any,
    family: str,
    tokens: np.ndarray,
    mean: Callable[..., jax.Array] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> np.ndarray | None:
    """The mean of each text's last hidden states.

    Args:
      network: the backbone with its heads.
      params: its parameters.
      family: "encoder", "decoder" or "encoder_decoder".
      tokens: int32 [texts, length], −1 on padding.
      mean: `_mean` compiled for this model, of (params, tokens).
      stop: called between batches; True stops.

    Returns:
      float32 [texts, width]; None if stopped.
    """
    mean = mean or functools.partial(_mean, network, family)
    full = np.pad(tokens, ((0, -len(tokens) % _BATCH), (0, 0)), constant_values=-1)
    parts = []
    for first in range(0, len(full), _BATCH):
        parts.append(to_host(mean(params, full[first : first + _BATCH])))
        if stop():
            return None
    return np.concatenate(parts)[: len(tokens)]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _mean(network: Network, family: str, params: Any, tokens: jax.Array) -> jax.Array:
    is_real = tokens >= 0
    ids, positions = jnp.maximum(tokens, 0), jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    bound = network.bind(params)
    run = bound.decode if family == "decoder" else bound.encode
    hidden = run(ids, segment_ids=is_real.astype(jnp.int32), positions=positions).hidden
    weights = is_real[..., None].astype(jnp.float32)
    return (hidden * weights).sum(1) / jnp.maximum(weights.sum(1), 1)


def classify(
    x_train: np.ndarray,
    y_train: np.ndarray,
    x_test: np.ndarray,
    classes: int,
    l2: float,
    fit: Callable[..., Any] | None = None,
) -> np.ndarray:
    """Multinomial logistic regression by L-BFGS on standardised features.

    loss = mean cross-entropy + l2/2 · |W|².

    Args:
      x_train: float [N, D].
      y_train: int [N].
      x_test: float [M, D].
      classes: number of classes.
      l2: coefficient of the penalty.
      fit: `_fit` compiled for these shapes, of (x, y, l2).

    Returns:
      The class of each test row, int [M].

    Example:
      >>> x = np.array([[0.0, 5.0], [1.0, 4.0], [5.0, 0.0], [6.0, 1.0]])
      >>> classify(x, np.array([0, 0, 1, 1]), np.array([[1.0, 6.0], [7.0, 0.0]]), 2, 1e-3).tolist()
      [0, 1]
    """
    centre, scale = x_train.mean(0), x_train.std(0) + 1e-6
    x, y = ((x_train - centre) / scale).astype(np.float32), y_train.astype(np.int32)
    found = jax.device_get(fit(x, y, l2) if fit else _fit(x, y, classes, l2))
    return (((x_test - centre) / scale) @ found["w"] + found["b"]).argmax(1)


@functools.partial(jax.jit, static_argnames="classes")
def _fit(x: jax.Array, y: jax.Array, classes: int, l2: float) -> dict[str, jax.Array]:
    solver = optax.lbfgs()

    def loss(p: dict[str, jax.Array]) -> jax.Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(x @ p["w"] + p["b"], y)
        return losses.mean() + l2 / 2 * (p["w"] ** 2).sum()

    def step(carry: Any, _: None) -> tuple[Any, None]:
        p, opt = carry
        value, grad = optax.value_and_grad_from_state(loss)(p, state=opt)
        updates, opt = solver.update(grad, opt, p, value=value, grad=grad, value_fn=loss)
        return (optax.apply_updates(p, updates), opt), None

    start = {"w": jnp.zeros((x.shape[1], classes)), "b": jnp.zeros(classes)}
    (found, _), _ = jax.lax.scan(step, (start, solver.init(start)), None, length=_ITERATIONS)
    return found


# ---- labelled texts -------------------------------------------------------------------------------------------------


def _rows(texts: Sequence[list[int]], vocabulary: Vocabulary, family: str, length: int) -> np.ndarray:
    """Token ids with the special tokens of the family: int32 [texts, length], −1 on padding."""
    before, after = [], []
    if vocabulary.cls is not None and vocabulary.sep is not None and family == "encoder":
        before, after = [vocabulary.cls], [vocabulary.sep]
    elif vocabulary.eos is not None and family == "encoder_decoder":
        after = [vocabulary.eos]
    rows = np.full((len(texts), length), -1, np.int32)
    for row, ids in zip(rows, texts):
        ids = [*before, *ids[: length - len(before) - len(after)], *after]
        row[: len(ids)] = ids
    return rows


def _read(path: Path, settings: Probe) -> tuple[list[str], list[str]]:
    """Texts and labels of a file."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8", newline="") as file:
            pairs = list(_pairs(file, path, settings))
    except (UnicodeDecodeError, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: not valid UTF-8 or gzip: {error}") from None
    if not pairs:
        raise UserError(f"{path}: contains no texts")
    texts, labels = zip(*pairs)
    return list(texts), list(labels)


def _pairs(file: Any, path: Path, settings: Probe) -> Iterator[tuple[str, str]]:
    kind = Path(path.name.removesuffix(".gz")).suffix
    if kind not in (".jsonl", ".csv", ".tsv"):
        raise UserError(f"{path}: expected a .jsonl, .csv or .tsv file, optionally with .gz")
    records = map(json.loads, file) if kind == ".jsonl" else csv.DictReader(file, delimiter=",\t"[kind == ".tsv"])
    try:
        for number, record in enumerate(records, 1):
            for field in (settings.text, settings.label):
                if not isinstance(record, dict) or record.get(field) is None:
                    raise UserError(
                        f"{path}: record {number} has no field {field!r}, only {', '.join(map(str, record))}"
                    )
            yield str(record[settings.text]), str(record[settings.label])
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not valid JSON: {error}") from None
