"""Fine-tuning beside transformers: loss, gradients, and weights after one step of SGD and of AdamW are equal.

A cell is a tiny random class of transformers, exported, read by `jaxpt.hf`, and given the rows of a task: they become
records and features as in a run. torch reads the same records, padded by itself. Dropout is 0.

Shapes: B rows · L length · C choices
"""

import functools
import importlib
import re
import types

import jax
import numpy as np
import optax
import pytest

from jaxpt.config import ObjectiveConfig, OptimizerConfig, TaskConfig, resolve
from jaxpt.data.calls import Vocabulary
from jaxpt.data.records.shard import Ragged
from jaxpt.hf import directory, mapping
from jaxpt.tables import Row
from jaxpt.tasks.base import LocatedRow
from jaxpt.train import optimizers, step
from tests.hf import test_tasks_parity as classes
from tests.hf.parity import V, randomise

pytestmark = [pytest.mark.parity, pytest.mark.slow]

TOLERANCE = 1e-4
"""Of the largest entry of a leaf: float32 adds up the same numbers in another order, here about 1e-6 of it."""
ZERO = 1e-5
"""A gradient below this share of the model's largest one is rounding."""
LENGTH, PAD, EOS, CLS = 16, 0, 1, 2
VOCABULARY = Vocabulary(V, PAD, bos=CLS, eos=EOS, cls=CLS, sep=EOS)
IDS = {
    "pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": CLS, "cls_token_id": CLS, "sep_token_id": EOS,
}  # fmt: skip
LABELS = ("no", "maybe", "yes")
TASKS = {
    "classification": {"kind": "classification", "text": "a", "pair": "b", "labels": LABELS},
    "regression": {"kind": "regression", "text": "a"},
    "multi_label": {"kind": "multi_label", "text": "a", "pair": "b", "labels": LABELS},
    "text_to_text": {"kind": "generation", "inputs": "{a}", "targets": "b"},
}
HEADS = dict.fromkeys(("classification", "regression", "multi_label"), "classes") | {
    "tagging": "tags", "question_answering": "span", "multiple_choice": "choice",
}  # fmt: skip
MODELS = (
    "bert", "roberta", "albert", "deberta-v3", "electra", "distilbert", "xlnet", "modernbert", "gpt2", "llama", "bart",
    "t5",
)  # fmt: skip
LANGUAGE_MODELS = {
    "gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "bart": "BartForConditionalGeneration",
    "t5": "T5ForConditionalGeneration",
}  # fmt: skip


def has_class(model, kind):
    """Whether transformers has the class."""
    return model in LANGUAGE_MODELS if kind == "text_to_text" else HEADS[kind] in classes.CASES[model][3]


CELLS = [(model, kind) for kind in TASKS for model in MODELS if has_class(model, kind)]

KEY = "adds the same number to all scores of a query: softmax does not see it"
EVERYWHERE = "adds the same number to the logits of all places: softmax does not see it"
ZEROS = {
    r".*(self\.key|attention\.key|k_lin|k_proj)\.bias": (KEY, slice(None), ("bert", "roberta", "albert", "electra",
                                                                              "distilbert", "bart")),
    r".*attn\.c_attn\.bias": (KEY, slice(classes.cases.D, 2 * classes.cases.D), ("gpt2",)),
}  # fmt: skip
"""{regular expression of their names: (why the gradient is zero, entries, models)}. AdamW divides such a gradient by
its own size: rounding becomes a step of the learning rate's size, here and in torch."""


class Numbers:
    """A tokenizer of texts that are ids: "12 7" has the tokens 12 and 7."""

    vocabulary = VOCABULARY

    def encode_batch(self, texts):
        return [[int(word) for word in text.split()] for text in texts]


def rows_of(kind, is_full, seed=0):
    """Rows of a task; `is_full`: each example has LENGTH tokens, or else they differ in length."""
    rng = np.random.default_rng(seed)

    def text(length):
        return " ".join(map(str, rng.integers(5, V, length)))

    rows = []
    for number in range(4):
        first, second = (LENGTH, LENGTH) if is_full else rng.integers(2, 6, 2)
        labels = {"classification": LABELS[number % 3], "regression": float(rng.normal()),
                  "multi_label": [LABELS[i] for i in range(3) if rng.integers(2)]}  # fmt: skip
        row = {"a": text(first), "b": text(second), "label": labels.get(kind)}
        if kind == "text_to_text":
            row["b"] = text(6 if is_full else second)
        rows.append(LocatedRow(Row(number + 1, row), f"row {number + 1}", (0, number)))
    return rows


def records_of(objective, rows):
    """Records as a run makes them."""
    return list(objective.batches.encoder(LENGTH, VOCABULARY)(rows, Numbers(), True, train=False))


def features_of(objective, records, length=LENGTH, packs=None):
    """Features as a run makes them; `packs` says which records a row is made of."""
    like = objective.batches.encoder(LENGTH, VOCABULARY).like()
    together = {
        name: Ragged(np.concatenate([r[name] for r in records]), np.array([len(r[name]) for r in records]))
        if x.shape == (0,)
        else np.stack([r[name] for r in records])
        for name, x in like.items()
    }
    call = objective.batches.rows(length, VOCABULARY)
    module, name = call.name.split(".")
    function = getattr(importlib.import_module(f"jaxpt.data.preprocessors.{module}"), name)
    return function.rows(together, **call.kwargs, packs=packs)


def objective_of(kind, config, **options):
    """The objective of a task on a model."""
    task = dict(TASKS[kind])
    task = resolve(task["kind"], "jaxpt.tasks", TaskConfig, "task")(**task)
    found = resolve("text_to_text" if kind == "text_to_text" else task.objective, "jaxpt.objectives", ObjectiveConfig)
    own = {"targets_length": 8, "separator": ""} if kind == "text_to_text" else {}
    return found(task=task, text_layout=config.text_layout, **own, **options)


# ---- transformers ---------------------------------------------------------------------------------------------------


def made(model, kind):
    """Their class with random weights, in training, without dropout."""
    transformers = pytest.importorskip("transformers")
    _, model_type, options, _ = classes.CASES[model]
    config = transformers.CONFIG_MAPPING[model_type](**{**options, **IDS})
    for name in vars(config):
        if "dropout" in name or "drop" in name.split("_")[-1]:
            setattr(config, name, 0.0)
    if model == "bart":
        config.decoder_start_token_id = config.forced_eos_token_id = EOS
    elif model == "t5":
        config.decoder_start_token_id = PAD
    if kind in HEADS and HEADS[kind] == "classes":
        config.num_labels = 1 if kind == "regression" else len(LABELS)
        problems = {"regression": "regression", "multi_label": "multi_label_classification"}
        config.problem_type = problems.get(kind, "single_label_classification")
    if kind == "text_to_text":
        name = LANGUAGE_MODELS[model]
    else:
        name = directory.families()[model_type].tasks[HEADS[kind]].name
    return randomise(getattr(transformers, name)(config), 0).train()


def padded(values, fill, left):
    """Sequences as rows: [B, L]."""
    length = max(map(len, values))
    sides = [(length - len(x), 0) if left else (0, length - len(x)) for x in values]
    return np.stack([np.pad(x, side, constant_values=fill) for x, side in zip(values, sides)])


def their_inputs(model, kind, records, config):
    """What a user of transformers gives the class: XLNet's rows are padded on the left."""
    left = model == "xlnet"

    def of(name):
        return [record[name] for record in records]

    if kind == "text_to_text" and "inputs" in records[0]:
        tokens, labels = of("inputs"), padded(of("targets"), -100, left)
    elif kind == "text_to_text":
        tokens = of("tokens")
        labels = padded([np.where(np.arange(len(x)) < n, -100, x) for x, n in zip(tokens, of("prefix"))], -100, left)
    else:
        tokens, labels = of("tokens"), np.stack(of("target"))
    out = {"input_ids": padded(tokens, PAD, left), "attention_mask": padded([np.ones_like(x) for x in tokens], 0, left)}
    if getattr(config, "type_vocab_size", 0) > 1 or model == "xlnet":
        out["token_type_ids"] = padded(of("token_types"), 0, left)
    return out | {"labels": labels}


def their_step(model, inputs, optimizer):
    """Loss, gradients, and weights after a step; the weights are then as before."""
    import torch

    given = {name: torch.from_numpy(x if x.dtype == np.float32 else x.astype(np.int64)) for name, x in inputs.items()}
    before = {name: x.detach().clone() for name, x in model.named_parameters()}
    model.zero_grad()
    loss = model(**given).loss
    loss.backward()
    gradients = {name: x.grad.numpy().copy() for name, x in model.named_parameters() if x.grad is not None}
    after = {}
    for name, make in optimizer.items():
        make(model).step()
        after[name] = {key: x.detach().numpy().copy() for key, x in model.named_parameters()}
        with torch.no_grad():
            for key, x in model.named_parameters():
                x.copy_(before[key])
    return loss.item(), gradients, after


SGD = {"kind": "sgd", "learning_rate": 0.5, "weight_decay": 0.0}
ADAMW = {"kind": "adamw", "learning_rate": 1e-3, "weight_decay": 1.0}


def their_optimizers():
    """torch's; as in transformers' Trainer, matrices alone are decayed."""
    import torch

    def adamw(model):
        groups = [
            {"params": [x for x in model.parameters() if (x.ndim > 1) == decayed], "weight_decay": ADAMW["weight_decay"] * decayed}
            for decayed in (True, False)
        ]
        return torch.optim.AdamW(groups, lr=ADAMW["learning_rate"])

    return {"sgd": lambda model: torch.optim.SGD(model.parameters(), SGD["learning_rate"]), "adamw": adamw}


# ---- ours -----------------------------------------------------------------------------------------------------------


def read(model, path):
    """Their model as a network's source and parameters."""
    model.save_pretrained(path)
    source = directory.open_directory(path, change={"dtype": "float32"})
    return source, classes.read(source)


def our_step(objective, network):
    """A jitted function (params, batch) → (loss, gradients, {optimizer: new parameters})."""
    makes = {}
    for options in (SGD, ADAMW):
        config = resolve(options["kind"], "jaxpt.train.optimizers", OptimizerConfig)(**options, clip_norm=None)
        schedule = optax.constant_schedule(config.learning_rate)
        makes[config.kind] = optimizers.make(config, schedule, network.logical_axes())

    @jax.jit
    def update(params, batch):
        gradients, metrics, _ = step.gradients(objective, network, params, batch, None)
        after = {}
        for name, tx in makes.items():
            updates, _ = tx.update(gradients, tx.init(params), params)
            after[name] = optax.apply_updates(params, updates)
        return metrics["loss"], gradients, after

    return update


# ---- both -----------------------------------------------------------------------------------------------------------


def zeros_of(model, kind, gradients):
    """{their name: entries whose true gradient is zero}."""
    found = {}
    for pattern, (_, entries, models) in ZEROS.items():
        if model in models:
            found |= {name: entries for name in gradients if re.fullmatch(pattern, name)}
    return found


def compared(want, got, zeros=types.MappingProxyType({})):
    """{name: largest difference, as a share of the largest entry}; entries of `zeros` are left out."""
    found = {}
    for name, x in want.items():
        keep = np.ones(x.shape, bool)
        if name in zeros:
            keep[zeros[name]] = False
        apart = np.abs(got[name] - x)[keep].max(initial=0)
        found[name] = apart / np.abs(x).max() if apart else 0.0
    return found


@pytest.mark.parametrize("model, kind", CELLS)
def test_a_step_is_that_of_transformers(model, kind, tmp_path):
    torch_model = made(model, kind)
    source, params = read(torch_model, tmp_path)
    objective = objective_of(kind, source.network.config, **({} if kind == "text_to_text" else {"examples": 1}))
    network = objective.loss.network(source.network.config)
    table = source.family.table_of(network)
    update = our_step(objective, network)
    to_theirs = functools.partial(mapping.to_hf, table=table, network=network)
    for is_full in (False, True):
        records = records_of(objective, rows_of(kind, is_full))
        loss, gradients, after = jax.device_get(update(params, features_of(objective, records)))
        inputs = their_inputs(model, kind, records, torch_model.config)
        assert (inputs["attention_mask"].min() == 1) == is_full
        want_loss, want, want_after = their_step(torch_model, inputs, their_optimizers())

        np.testing.assert_allclose(loss, want_loss, rtol=1e-5)
        got, zeros = to_theirs(gradients), zeros_of(model, kind, want)
        largest = max(np.abs(x).max() for x in want.values())
        for name, entries in zeros.items():
            assert max(np.abs(x[name][entries]).max() for x in (want, got)) < ZERO * largest, name
        found = {"gradient": compared(want, got, zeros)}
        found["sgd"] = compared(want_after["sgd"], to_theirs(after["sgd"]))
        found["adamw"] = compared(want_after["adamw"], to_theirs(after["adamw"]), zeros)
        for what, by_name in found.items():
            worst = sorted(by_name, key=by_name.get)[-3:]
            print(f"CELL {model} {kind} {'full' if is_full else 'padded'} {what} loss {abs(loss - want_loss):.1e}",
                  *(f"{by_name[n]:.1e} {n} ({np.abs(want.get(n, np.zeros(1))).max() / largest:.1e})" for n in worst))
            assert by_name[worst[-1]] < TOLERANCE, (what, worst[-1], by_name[worst[-1]])
