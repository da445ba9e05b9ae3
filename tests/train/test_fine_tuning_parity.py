"""Fine-tuning beside transformers: loss, gradients, and weights after one step of SGD and of AdamW are equal.

A cell is a tiny random class of transformers, exported, read by `jaxpt.hf`, and given the rows of a task: they become
records and features as in a run. torch reads the same records, padded by itself. Dropout is 0.

Shapes: B rows · L length · C choices
"""

import functools
import re
import types

import jax
import numpy as np
import optax
import pytest

from jaxpt import config as configs
from jaxpt.config import OptimizerConfig, resolve
from jaxpt.hf import directory
from jaxpt.train import optimizers, state, step
from jaxpt.train.state import fresh
from tests import grids
from tests.hf import test_tasks_parity as classes
from tests.hf.parity import randomise
from tests.hf.states import to_hf
from tests.labelled import (
    CLS,
    EOS,
    LABELS,
    LENGTH,
    PAD,
    TASKS,
    VOCABULARY,
    features_of,
    objective_of,
    records_of,
    rows_of,
)  # fmt: skip

pytestmark = [pytest.mark.parity, pytest.mark.slow]

TOLERANCE = 1e-4
"""Of the largest entry of a leaf: float32 adds up the same numbers in another order, here about 1e-6 of it."""
ZERO = 1e-5
"""A gradient below this share of the model's largest one is rounding."""
IDS = {
    "pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": CLS, "cls_token_id": CLS, "sep_token_id": EOS,
}  # fmt: skip
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


SAME_NETWORK = {"regression": ("bert", "xlnet", "modernbert", "gpt2", "bart", "t5"), "multi_label": ("bert", "gpt2")}
"""These are other losses of the classes of `classification`: some models are enough."""
CELLS = [
    (model, kind) for kind in TASKS for model in MODELS
    if has_class(model, kind) and model in SAME_NETWORK.get(kind, MODELS)
]  # fmt: skip

SUITE = (
    ("bart", "classification"), ("llama", "classification"), ("roberta", "classification"), ("gpt2", "regression"),
    ("bert", "multi_label"), ("deberta-v3", "tagging"), ("t5", "tagging"), ("distilbert", "question_answering"),
    ("xlnet", "question_answering"), ("albert", "multiple_choice"), ("electra", "multiple_choice"),
    ("modernbert", "multiple_choice"), ("gpt2", "text_to_text"), ("t5", "text_to_text"),
)  # fmt: skip
"""Each model once, and each task. The logits of every class are compared in tests/hf/test_tasks_parity.py."""

KEY = "adds the same number to all scores of a query: softmax does not see it"
COSINE = "multiplies cosines that are 1 at all distances of a short row, but for 1e-4: the same number for all scores"
PLACES = "adds the same number to the logits of all tokens: softmax does not see it"
CHOICES = "adds the same number to the logits of all choices: softmax does not see it"
D, LAST = classes.cases.D, "1"
ZEROS = (
    (KEY, TASKS, r".*(self\.key|attention\.key|k_lin|k_proj)\.bias", slice(None)),
    (KEY, TASKS, r".*attn\.c_attn\.bias", slice(D, 2 * D)),
    (COSINE, TASKS, r".*rel_attn\.r", slice(D - 3, None)),
    (PLACES, ("question_answering",), r"(qa_outputs|classifier)\.bias", slice(None)),
    (PLACES, ("question_answering",), rf".*layers?\.{LAST}\.(output\.LayerNorm|output_layer_norm|ff\.layer_norm)\.bias",
     slice(None)),
    (PLACES, ("question_answering",), rf"model\.decoder\.layers\.{LAST}\.final_layer_norm\.bias", slice(None)),
    (PLACES, ("question_answering",), r"transformer\.ln_f\.bias", slice(None)),
    (CHOICES, ("multiple_choice",), r"(classifier|logits_proj)\.bias", slice(None)),
)  # fmt: skip
"""(why the gradient is zero, tasks, regular expression of their names, entries). AdamW divides such a gradient by its
own size: rounding becomes a step of the size of the learning rate, here and in torch."""


# ---- transformers ---------------------------------------------------------------------------------------------------


def made(model, kind):
    """Their class with random weights, in training, without dropout."""
    transformers = pytest.importorskip("transformers")
    _, model_type, options, _ = classes.CASES[model]
    config = transformers.CONFIG_MAPPING[model_type](**{**options, **IDS})
    for name in vars(config):
        if "dropout" in name or "drop" in name.split("_")[-1]:
            setattr(config, name, 0.0)
    config.classifier_dropout = 0.0  # of GPT-2's tags: 0.1 where the configuration has no such key
    if model == "bart":
        config.decoder_start_token_id = config.forced_eos_token_id = EOS
    elif model == "t5":
        config.decoder_start_token_id = PAD
    if HEADS.get(kind) in ("classes", "tags"):
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
        tokens, labels = of("tokens"), None
    arrays = {"input_ids": tokens, "attention_mask": [np.ones_like(x) for x in tokens]}
    if getattr(config, "type_vocab_size", 0) > 1 or model == "xlnet":
        arrays["token_type_ids"] = of("token_types")
    if kind == "multiple_choice":  # a record is a choice beside the other, each filled up to the longer one
        sizes = [size for record in records for size in record["sizes"]]
        arrays = {name: [y for x in xs for y in np.split(x, 2)] for name, xs in arrays.items()}
        arrays = {name: [y[:n] for y, n in zip(ys, sizes)] for name, ys in arrays.items()}
    out = {name: padded(xs, PAD if name == "input_ids" else 0, left) for name, xs in arrays.items()}
    before = (out["attention_mask"].argmax(1) if left else 0) * np.ones(len(out["input_ids"]), int)
    match kind:
        case "multiple_choice":
            out = {name: x.reshape(len(records), 2, -1) for name, x in out.items()}
            labels = np.stack(of("target"))
        case "tagging":
            labels = np.full_like(out["input_ids"], -100)
            for row, at, record in zip(labels, before, records):
                row[at + record["positions"]] = record["targets"]
        case "question_answering":
            starts, ends = (np.stack(of("positions")) + before[:, None]).T
            return out | {"start_positions": starts, "end_positions": ends}
        case "classification" | "regression" | "multi_label":
            labels = np.stack(of("target"))
    return out | {"labels": labels}


def to_torch(inputs):
    """Integers as int64."""
    import torch

    return {name: torch.from_numpy(x if x.dtype == np.float32 else x.astype(np.int64)) for name, x in inputs.items()}


def their_loss(model, given):
    """The class's own loss. Their softmax over places has the padding among them: it is taken out here."""
    import torch

    if "start_positions" not in given or given["attention_mask"].all():
        return model(**given).loss
    targets = [given.pop(name) for name in ("start_positions", "end_positions")]
    found = model(**given)
    logits = [x.masked_fill(given["attention_mask"] == 0, -torch.inf) for x in (found.start_logits, found.end_logits)]
    return sum(torch.nn.functional.cross_entropy(x, target) for x, target in zip(logits, targets)) / 2


def their_step(model, inputs, optimizer):
    """Loss, gradients, and weights after a step; the weights are then as before."""
    import torch

    given = to_torch(inputs)
    before = {name: x.detach().clone() for name, x in model.named_parameters()}
    model.zero_grad()
    loss = their_loss(model, given)
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


SGD = {"kind": "sgd", "learning_rate": 0.1, "weight_decay": 0.0}
ADAMW = {"kind": "adamw", "learning_rate": 1e-3, "weight_decay": 1.0}


def their_optimizers():
    """torch's; as in transformers' Trainer, matrices alone are decayed."""
    import torch

    def adamw(model):
        decay = ADAMW["weight_decay"]
        groups = [
            {"params": [x for x in model.parameters() if (x.ndim > 1) == decayed], "weight_decay": decay * decayed}
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


OPTIONS = {kind: {"examples": 1} for kind in TASKS if kind not in ("text_to_text", "tagging")}
"""Of the objectives: a row has one example."""


# ---- both -----------------------------------------------------------------------------------------------------------


def zeros_of(kind, names):
    """{their name: entries whose true gradient is zero}."""
    return {
        name: entries
        for _, kinds, pattern, entries in ZEROS
        for name in names
        if kind in kinds and re.fullmatch(pattern, name)
    }


def compared(want, got, left_out=types.MappingProxyType({})):
    """{name: largest difference, as a share of the largest entry}; entries of `left_out` are not looked at."""
    found = {}
    for name, x in want.items():
        keep = np.ones(x.shape, bool)
        keep[left_out.get(name, np.zeros(x.shape, bool))] = False
        apart = np.abs(got[name] - x)[keep].max(initial=0)
        found[name] = apart / np.abs(x).max() if apart else 0.0
    return found


def without_sign(want, got, zeros):
    """{name: entries whose gradient is rounding}: `zeros`, and the few, fewer than 0.5 %, that are as small by chance.

    AdamW's first step of an entry is the learning rate times its sign, which rounding gives to either side alone where
    the true gradient is zero (a unit of ReLU that is on in all choices).
    """
    found = {}
    for name, x in want.items():
        size = np.maximum(np.abs(x), np.abs(got[name]))
        found[name] = (size != 0) & (size < ZERO * np.abs(x).max())
    assert sum(x.sum() for name, x in found.items() if name not in zeros) < 0.005 * sum(x.size for x in found.values())
    for name, entries in zeros.items():
        found[name][entries] = True
    return found


def assert_small(found):
    """{what: result of `compared`}"""
    for what, by_name in found.items():
        worst = max(by_name, key=by_name.get)
        assert by_name[worst] < TOLERANCE, (what, worst, by_name[worst])


@pytest.mark.parametrize("model, kind", grids.cases(CELLS, *SUITE))
def test_a_step_is_that_of_transformers(model, kind, tmp_path):
    torch_model = made(model, kind)
    source, params = read(torch_model, tmp_path)
    objective = objective_of(kind, source.network.config, **OPTIONS.get(kind, {}))
    network = objective.network(source.network.config)
    table = source.family.table_of(network)
    update = our_step(objective, network)
    to_theirs = functools.partial(to_hf, table=table, network=network)
    for is_full in (False, True):
        records = records_of(objective, rows_of(kind, objective.layout(VOCABULARY), is_full))
        loss, gradients, after = jax.device_get(update(params, features_of(objective, records)))
        inputs = their_inputs(model, kind, records, torch_model.config)
        assert (inputs["attention_mask"].min() == 1) == is_full
        want_loss, want, want_after = their_step(torch_model, inputs, their_optimizers())

        np.testing.assert_allclose(loss, want_loss, rtol=1e-5)
        got, zeros = to_theirs(gradients), zeros_of(kind, want)
        largest = max(np.abs(x).max() for x in want.values())
        for name, entries in zeros.items():
            assert max(np.abs(x[name][entries]).max() for x in (want, got)) < ZERO * largest, name
        found = {"gradient": compared(want, got, zeros)}
        found["sgd"] = compared(want_after["sgd"], to_theirs(after["sgd"]))
        found["adamw"] = compared(want_after["adamw"], to_theirs(after["adamw"]), without_sign(want, got, zeros))
        assert_small(found)


@pytest.mark.parametrize(
    "model, kind",
    grids.cases([("bert", "classification"), ("gpt2", "text_to_text"), ("t5", "tagging")], ("bert", "classification")),
)
@pytest.mark.parametrize("optimizer", [SGD | {"b1": 0.9}, ADAMW], ids=["sgd", "adamw"])
def test_two_steps_of_a_run(model, kind, optimizer, tmp_path):
    """The step that a run compiles, with its state: momentum and moments, too."""
    import torch

    torch_model = made(model, kind)
    source, params = read(torch_model, tmp_path)
    objective = objective_of(kind, source.network.config, **OPTIONS.get(kind, {}))
    config = configs.build({
        "model": source.network.config.model_dump(), "task": TASKS[kind],
        "objective": objective.model_dump(exclude={"task", "text_layout"}),
        "data": {"tokenizer": {"kind": "wordpiece"}, "length": LENGTH, "batch_size": 4},
        "optimizer": optimizer | {"clip_norm": None}, "train": {"steps": 9},
    })  # fmt: skip
    setup = state.setup(config, jax.devices()[:1])
    update, table = step.make_train_step(setup, config.objective), source.family.table_of(setup.network)
    if optimizer["kind"] == "sgd":
        torch_optimizer = torch.optim.SGD(torch_model.parameters(), optimizer["learning_rate"], momentum=0.9)
    else:
        torch_optimizer = their_optimizers()["adamw"](torch_model)
    left_out = {}
    with setup.use():
        ours = jax.device_put(fresh(config, setup.optimizer, params, setup.trained), setup.shardings, may_alias=False)
        for is_full in (False, True):
            records = records_of(objective, rows_of(kind, objective.layout(VOCABULARY), is_full))
            ours, metrics = update(ours, step.put(features_of(objective, records), setup))
            given = to_torch(their_inputs(model, kind, records, torch_model.config))
            torch_optimizer.zero_grad()
            (loss := their_loss(torch_model, given)).backward()
            torch_optimizer.step()
            np.testing.assert_allclose(metrics["loss"], loss.item(), rtol=1e-5)
            gradients = {name: x.grad.numpy() for name, x in torch_model.named_parameters() if x.grad is not None}
            for name, entries in without_sign(gradients, gradients, zeros_of(kind, gradients)).items():
                left_out[name] = left_out.get(name, False) | entries
    got = to_hf(jax.device_get(ours.params), table, setup.network)
    want = {name: x.detach().numpy() for name, x in torch_model.named_parameters()}
    assert_small({"weights": compared(want, got, left_out if optimizer["kind"] == "adamw" else {})})
