"""A linear probe: a linear classifier predicts the label of a text, or of each word, from a frozen model's states.

It is the same for all three families, so models with different objectives are comparable: the features are the hidden
states of a layer of the encoder (of the decoder in decoder-only models), averaged over the tokens of the text, or over
the pieces of the word. The report also has the accuracy of a baseline, and of the same probe on the untrained model.
The baseline is the most frequent label; of words each word's most frequent one.

Shapes: N texts or words · D width · K layers
"""

from __future__ import annotations

import collections
import functools
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxpt import config as configs
from jaxpt.config.studies import Probe
from jaxpt.data import tables
from jaxpt.data.parts import languages
from jaxpt.data.tables.reading import where
from jaxpt.data.tables.rows import Row, column, label
from jaxpt.decode import prompts
from jaxpt.decode.embed import Layer, tokens_of
from jaxpt.errors import UserError
from jaxpt.models.network import Network
from jaxpt.runtime.disk import write_text
from jaxpt.train import checkpoint, initial, state, vocabularies
from jaxpt.train.display import say
from jaxpt.train.evaluators import Evaluate, Evaluator, Result
from jaxpt.train.state import Setup

if TYPE_CHECKING:
    from jaxpt.data.base import Data
    from jaxpt.data.tokenizers import Tokenizer

_ITERATIONS = 100
FIRST_ROWS = 20
"""Rows of each file that are looked at before a run."""


class LinearProbe(Evaluator, Probe):
    """Accuracy of a linear probe on labelled texts or words, and of the most frequent label."""

    kind: Literal["probe"] = "probe"

    def check(self, config: configs.Config) -> None:
        for key in ("path", "test_path"):
            try:
                read(getattr(self, key), self, limit=FIRST_ROWS)
            except UserError as error:
                raise UserError(f"{key}: {error}") from None

    def prepare(self, setup: Setup, data: Data) -> Evaluate:
        task = task_of(self, data.tokenizer, setup)
        setup = setup.for_evaluation()
        _features(setup, setup.placed_shapes().params, task, self.layer)  # compiles

        def evaluate(params: Any, earlier: Mapping[str, float], stop: Callable[[], bool]) -> Result | None:
            layer_accuracies = _accuracies(setup, params, task, self, stop)
            if layer_accuracies is None:
                return None
            metrics = {"accuracy": layer_accuracies[-1], "most_frequent": task.baseline}
            if self.layer == "all":
                metrics |= {f"layer_{n}": accuracy for n, accuracy in enumerate(layer_accuracies)}
            return Result(metrics)

        return evaluate


class Task(NamedTuple):
    """Labelled texts or words: (training, test)."""

    reader: prompts.PromptEncoder
    texts: tuple[list[list[int]], list[list[int]]]
    """Ids of each text."""
    spans: tuple[Sequence[np.ndarray] | None, Sequence[np.ndarray] | None]
    """Tokens of each text's words."""
    labels: tuple[np.ndarray, np.ndarray]
    """int [N] each; −1 for labels that do not occur in training."""
    classes: int
    baseline: float
    """Test accuracy of the most frequent training label, of words of each word's."""


class Labelled(NamedTuple):
    """A file: texts, or sentences with the characters of each word."""

    texts: list[str]
    spans: list[np.ndarray] | None
    labels: list[list[str]]
    """Of each text one, or one of each word."""


def task_of(settings: Probe, tokenizer: Tokenizer, setup: Setup) -> Task:
    """Reads the files of a probe.

    Args:
      settings: the files, their text and label fields.
      tokenizer: the run's.
      setup: the run's.

    Returns:
      What the classifier is trained and tested on.

    Raises:
      UserError: a file cannot be read, or the model's positions have no room for a word.
    """
    reader = prompts.of_run(setup.config, tokenizer)
    files = ((settings.path, settings.max_words), (settings.test_path, None))
    ids, spans, units, names = zip(
        *(_laid(read(path, settings, max_words), reader, setup.network) for path, max_words in files)
    )
    numbers = {name: n for n, name in enumerate(sorted(set(names[0])))}
    labels = tuple(np.array([numbers.get(name, -1) for name in of_file]) for of_file in names)
    baseline = _most_frequent((units[0], names[0]), units[1])
    hits = [guess == name for guess, name in zip(baseline, names[1], strict=True)]
    return Task(reader, ids, spans, labels, len(numbers), float(np.mean(hits)))


def _laid(
    labelled: Labelled, reader: prompts.PromptEncoder, network: Network
) -> tuple[list[list[int]], list[np.ndarray] | None, list[str], list[str]]:
    """(ids of each text, tokens of its words, what each vector is of, its label); texts are all of one kind."""
    if labelled.spans is None:
        ids = reader.tokenizer.encode_batch(labelled.texts)
        return ids, None, [""] * len(ids), [name for (name,) in labelled.labels]
    encoded = reader.tokenizer.encode_with_offsets(labelled.texts)
    ids = [encoding.ids for encoding in encoded]
    tokens = [tokens_of(encoding.offsets, spans) for encoding, spans in zip(encoded, labelled.spans)]
    units, names = [], []
    rows = reader.lay(network, ids, tokens)
    for text, spans, labels, numbers in zip(labelled.texts, labelled.spans, labelled.labels, rows.numbers):
        units += [text[start:end] for start, end in spans[numbers]]  # words beyond the positions have no vector
        names += [labels[number] for number in numbers]
    if not names:
        raise UserError(f"the model's {network.config.position_limit} positions have no room for a word")
    return ids, tokens, units, names


def _most_frequent(train: tuple[Sequence[str], Sequence[str]], units: Sequence[str]) -> list[str]:
    """The most frequent label of each unit in training; of one that is not there, of all.

    Example:
      >>> _most_frequent((["a", "a", "a", "b"], ["X", "Y", "Y", "Z"]), ["a", "b", "c"])
      ['Y', 'Z', 'Y']
    """
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for unit, name in zip(*train):
        counts[unit][name] += 1
    overall = collections.Counter(train[1]).most_common(1)[0][0]
    return [counts[unit].most_common(1)[0][0] if unit in counts else overall for unit in units]


def _features(
    setup: Setup, params: Any, task: Task, layer: Layer, stop: Callable[[], bool] = lambda: False
) -> list[np.ndarray] | None:
    """Features [K, N, D] of the training and of the test set; None if stopped."""
    features = []
    for ids, spans in zip(task.texts, task.spans):
        with setup.use():
            embeddings = task.reader.embed(setup.network, params, ids, layer=layer, spans=spans, stop=stop)
        if embeddings is None:
            return None
        features.append(embeddings.by_layer())
    return features


def _accuracies(
    setup: Setup, params: Any, task: Task, settings: Probe, stop: Callable[[], bool] = lambda: False
) -> list[float] | None:
    """The test accuracy of the probe of each layer; None if stopped."""
    params = vocabularies.with_word_vectors(setup.config, task.reader.tokenizer, params)
    if (features := _features(setup, params, task, settings.layer, stop)) is None:
        return None
    y_train, y_test = task.labels
    guesses = (classify(train, y_train, test, task.classes, settings.l2) for train, test in zip(*features))
    return [float((guess == y_test).mean()) for guess in guesses]


def probe(path: str, settings: Probe) -> dict[str, Any]:
    """`jaxpt probe`: trains the classifier on one labelled file and evaluates it on another.

    Args:
      path: a run_dir (the newest checkpoint; of a finished run with a task the best), or `RUN_DIR/checkpoints/STEP`.
      settings: the files, their text and label fields, and the layer.

    Returns:
      {"accuracy", "untrained", "most_frequent"}, accuracies on the test file, and with all layers {"layers":
      [accuracy of each], "untrained_layers"}; also written to RUN_DIR/evaluations/probe.json, with the step and the
      settings.

    Raises:
      UserError: there is no checkpoint, or a file cannot be read.
    """
    from jaxpt.data import tokenizers

    run_dir, step = checkpoint.find(path)
    config = configs.load(run_dir)
    setup, vocabulary = initial.setup_at(state.setup(config), step), config.data.tokenizer
    tokenizer = tokenizers.load(
        run_dir / "tokenizer", vocabulary.kind, extra_ids=vocabulary.extra_ids, languages=languages(config)
    )
    task = task_of(settings, tokenizer, setup)
    with checkpoint.Checkpoints(run_dir, config.checkpoint, read_only=True) as saved:
        trained = _accuracies(setup, saved.restore_params(setup, step), task, settings)
    untrained = _accuracies(setup, setup.to_model(setup.init()), task, settings)
    means: dict[str, Any] = {"accuracy": trained[-1], "untrained": untrained[-1], "most_frequent": task.baseline}
    if settings.layer == "all":
        means |= {"layers": trained, "untrained_layers": untrained}
    (run_dir / "evaluations").mkdir(exist_ok=True)
    results = {"step": step, "settings": settings.model_dump(mode="json"), **means}
    write_text(run_dir / "evaluations" / "probe.json", json.dumps(results, indent=2) + "\n")
    for line in lines(f"{run_dir} at step {step}", settings, task, trained, untrained):
        say(line)
    return means


def lines(title: str, settings: Probe, task: Task, trained: Sequence[float], untrained: Sequence[float]) -> list[str]:
    """What the user is shown: a line, or a table of the layers.

    Args:
      title: the run and its step.
      settings: the probe's.
      task: what it was trained and tested on.
      trained: accuracy of each layer.
      untrained: the same of the untrained model.

    Returns:
      The lines.
    """
    baseline = "most frequent label" if settings.unit == "text" else "most frequent label of the word"
    units = f"{len(task.labels[1]):,} test {settings.unit}s"
    head = f"{title}, linear probe of {task.classes} labels, {units}: "
    if settings.layer != "all":
        means = f"accuracy {trained[0]:.1%}, untrained model {untrained[0]:.1%}"
        return [f"{head}{means}, {baseline} {task.baseline:.1%}"]
    table = [f"{n:>8}{accuracy:>12.1%}{other:>12.1%}" for n, (accuracy, other) in enumerate(zip(trained, untrained))]
    return [f"{head}{baseline} {task.baseline:.1%}", f"{'layer':>8}{'accuracy':>12}{'untrained':>12}", *table]


def classify(
    x_train: np.ndarray,
    y_train: np.ndarray,
    x_test: np.ndarray,
    classes: int,
    l2: float,
) -> np.ndarray:
    """Multinomial logistic regression by L-BFGS on standardised features.

    loss = mean cross-entropy + l2/2 · |W|².

    Args:
      x_train: float [N, D].
      y_train: int [N].
      x_test: float [M, D].
      classes: number of classes.
      l2: coefficient of the penalty.

    Returns:
      The class of each test row, int [M].

    Example:
      >>> x = np.array([[0.0, 5.0], [1.0, 4.0], [5.0, 0.0], [6.0, 1.0]])
      >>> classify(x, np.array([0, 0, 1, 1]), np.array([[1.0, 6.0], [7.0, 0.0]]), 2, 1e-3).tolist()
      [0, 1]
    """
    centre, scale = x_train.mean(0), x_train.std(0) + 1e-6
    x, y = ((x_train - centre) / scale).astype(np.float32), y_train.astype(np.int32)
    weights = jax.device_get(_fit(x, y, classes, l2))
    return (((x_test - centre) / scale) @ weights["w"] + weights["b"]).argmax(1)


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
    (weights, _), _ = jax.lax.scan(step, (start, solver.init(start)), None, length=_ITERATIONS)
    return weights


# ---- labelled texts -------------------------------------------------------------------------------------------------


def read(path: str, settings: Probe, max_words: int | None = None, limit: int | None = None) -> Labelled:
    """Texts or words of a file, with their labels.

    Args:
      path: the file.
      settings: its fields.
      max_words: words at most; of texts there are as many as the file has.
      limit: the first rows alone.

    Returns:
      What the file has.

    Raises:
      UserError: it cannot be read, or a row has no text, no label, or as many labels as words.
    """
    is_text = settings.unit == "text"
    field = settings.text or ("text" if is_text else "tokens")
    labelled = Labelled([], None if is_text else [], [])
    words = 0
    for row in itertools.islice(tables.read(str(path)), limit):
        place = where(str(path), row)
        if is_text:
            labelled.texts.append(tables.text(row, field, place, as_text=True))
            labelled.labels.append([_label(column(row, settings.label, place), settings, place)])
            continue
        texts, names = [*map(str, _words(row, field, place))], _words(row, settings.label, place)
        labels = [_label(name, settings, place) for name in names]
        if len(texts) != len(labels):
            raise UserError(f"{place}: {len(texts)} words in {field!r}, {len(labels)} labels in {settings.label!r}")
        ends = np.cumsum([len(word) + 1 for word in texts], dtype=np.int64) - 1
        labelled.texts.append(" ".join(texts))
        labelled.spans.append(np.stack([ends - [len(word) for word in texts], ends], -1))
        labelled.labels.append(labels)
        words += len(texts)
        if max_words is not None and words >= max_words:
            break
    return labelled


def _label(value: Any, settings: Probe, place: str) -> str:
    if not (label_text := label(value)):
        raise UserError(f"{place}: column {settings.label!r}: empty label; give it a label or take the row out")
    return label_text


def _words(row: Row, field: str, place: str) -> list[Any]:
    values = column(row, field, place)
    if not isinstance(values, list) or not values or any(isinstance(word, list | dict) for word in values):
        raise UserError(f"{place}: column {field!r} wants a list, one for each word, got {values!r:.40}")
    return values
