"""Fine-tuned classes: logits equal those of transformers, and what is exported loads there as it was."""

import functools
import json

import jax
import numpy as np
import pytest
from flax import traverse_util

from jaxpt.hf import directory, save, verify
from jaxpt.models import stored
from jaxpt.models.network import Network
from tests import grids
from tests.hf import test_parity as cases
from tests.hf.parity import randomise, with_ids_of

pytestmark = [pytest.mark.parity, pytest.mark.slow]

TOLERANCE = 1e-5
SIZES = cases.SIZES | {"num_hidden_layers": 2}
T5_SIZES = cases.T5_SIZES | {"num_layers": 2}
GPT2_SIZES = cases.GPT2_SIZES | {"n_layer": 2}
LLAMA_SIZES = cases.LLAMA_SIZES | {"num_hidden_layers": 2}
BART_SIZES = cases.BART_SIZES | {"encoder_layers": 2}
MODERN_SIZES = cases.MODERN_SIZES | {"num_hidden_layers": 3}
EURO_SIZES = LLAMA_SIZES | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "mask_token_id": 3}
ALL = ("classes", "tags", "span", "choice")

# name: (beginning of their classes' names, model_type, sizes and options, our heads that they have classes for)
CASES = {
    "bert": ("Bert", "bert", SIZES, ALL),
    "albert": ("Albert", "albert", SIZES | {"embedding_size": 10}, ALL),
    "roberta": ("Roberta", "roberta", SIZES | {"type_vocab_size": 2}, ALL),
    "xlm-roberta": ("XLMRoberta", "xlm-roberta", SIZES | {"type_vocab_size": 1}, ALL[:1]),
    "distilbert": ("DistilBert", "distilbert", cases.DISTIL_SIZES | {"n_layers": 2}, ALL),
    "electra": ("Electra", "electra", SIZES | {"embedding_size": 10, "hidden_act": "relu"}, ALL),
    "deberta-v3": ("DebertaV2", "deberta-v2", cases.DEBERTA_SIZES | {"num_hidden_layers": 2}, ALL),
    "xlnet": ("XLNet", "xlnet", cases.XLNET_SIZES | {"n_layer": 2}, ALL),
    "modernbert": ("ModernBert", "modernbert", MODERN_SIZES | {"classifier_pooling": "cls"}, ALL),
    "modernbert, mean, biases": (
        "ModernBert", "modernbert",
        MODERN_SIZES | {"classifier_pooling": "mean", "classifier_bias": True, "norm_bias": True, "norm_eps": 1e-3,
                        "classifier_activation": "relu"},
        ("classes", "choice"),
    ),
    "camembert": ("Camembert", "camembert", SIZES | {"type_vocab_size": 1}, ALL[:1]),
    "eurobert": ("EuroBert", "eurobert", EURO_SIZES, ALL[:2]),
    "eurobert, first": ("EuroBert", "eurobert", EURO_SIZES | {"classifier_pooling": "bos"}, ALL[:1]),
    "eurobert, mean": ("EuroBert", "eurobert", EURO_SIZES | {"classifier_pooling": "mean", "mlp_bias": True}, ALL[:1]),
    "modernbert-decoder": (
        "ModernBertDecoder", "modernbert-decoder", MODERN_SIZES | {"classifier_bias": True, "norm_bias": True}, ALL[:1]
    ),
    "gpt2": ("GPT2", "gpt2", GPT2_SIZES | {"n_inner": cases.FF}, ALL[:3]),
    "openai-gpt": ("OpenAIGPT", "openai-gpt", GPT2_SIZES, ALL[:1]),
    "opt": ("OPT", "opt", cases.OPT_SIZES | {"num_hidden_layers": 2}, ("classes", "span")),
    "llama": ("Llama", "llama", LLAMA_SIZES, ALL[:3]),
    "llama, tied": ("Llama", "llama", LLAMA_SIZES | {"tie_word_embeddings": True}, ("span",)),
    "mistral": ("Mistral", "mistral", LLAMA_SIZES | {"sliding_window": 5}, ALL[:3]),
    "bart": ("Bart", "bart", BART_SIZES, ("classes", "span")),
    "mbart": ("MBart", "mbart", BART_SIZES, ("classes", "span")),
    "t5": ("T5", "t5", T5_SIZES, ALL[:3]),
    "t5 1.1": ("T5", "t5", T5_SIZES | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, ALL[:1]),
    "mt5": ("MT5", "mt5", T5_SIZES, ALL[:1]),
    "umt5": ("UMT5", "umt5", T5_SIZES, ALL[:3]),
}  # fmt: skip
LABELS = {"classes": ("no", "maybe", "yes"), "tags": ("O", "B-X", "I-X", "B-Y", "I-Y")}


@functools.cache
def backbone(config, stack):
    """Compiled hidden states: one function serves all heads of a case."""
    network = Network(config.build())
    return jax.jit(lambda params, inputs: verify.task_states(network.bind({"model": params}), inputs, stack))


def logits(source, params, inputs, name):
    """Ours, in float32."""
    config = source.network.config.model_copy(update={"dtype": "float32"})
    network = source.family.network(config, source.network.heads)
    states = backbone(config, config.task_head(name).stack)(params["model"], inputs)
    head = jax.jit(lambda params, states: verify.task_logits(network.bind(params), states, inputs))
    return {"logits": head(params, states)}


def read(source):
    """Parameters of a directory; those that their class lacks are zero."""
    expected = stored.stored_params(source.network)
    zeros = {path: np.zeros(x.shape, np.float32) for path, x in expected.items() if source.table.is_lacking(path)}
    return traverse_util.unflatten_dict(zeros | dict(stored.parameters(source.pieces(), expected)), sep="/")


def made(case, name):
    """Their model, with random weights and names of the labels."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    prefix, model_type, options, _ = CASES[case]
    config = transformers.CONFIG_MAPPING[model_type](**options)
    if name in LABELS:
        config.id2label = dict(enumerate(LABELS[name]))
        config.label2id = {label: i for i, label in enumerate(LABELS[name])}
    their_class = getattr(transformers, directory.families()[model_type].tasks[name].name)
    assert their_class.__name__.startswith(prefix)
    return randomise(their_class(config), 0)


def test_every_class_of_transformers_is_here():
    """Of the families that are supported: all four kinds of classes that transformers has."""
    auto = pytest.importorskip("transformers.models.auto.modeling_auto")
    kinds = {
        "classes": auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        "tags": auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
        "span": auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
        "choice": auto.MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES,
    }
    for model_type, family in directory.families().items():
        wanted = {head: names[model_type] for head, names in kinds.items() if model_type in names}
        assert {head: task.name for head, task in family.tasks.items()} == wanted, model_type


SUITE = {
    "bert": ("classes", "choice"), "albert": ("classes",), "roberta": ("classes",), "distilbert": ("classes", "span"),
    "electra": ("classes", "choice"), "deberta-v3": ("classes",), "xlnet": ("classes", "span"),
    "eurobert": ("classes",), "modernbert-decoder": ("classes",),
    "modernbert": ("classes",), "modernbert, mean, biases": ("choice",), "gpt2": ("classes", "tags"),
    "openai-gpt": ("classes",), "opt": ("span",), "llama": ("tags",), "llama, tied": ("span",), "mistral": ("classes",),
    "bart": ("classes",), "mbart": ("span",), "t5": ("span",), "t5 1.1": ("classes",), "umt5": ("tags",),
}  # fmt: skip
"""The head of classes is another one in nearly each architecture; the others are alike, so a few of each will do."""
EVERY = [(case, name) for case, (*_, heads) in CASES.items() for name in heads]


@pytest.mark.parametrize(
    "case, name", grids.cases(EVERY, *((case, name) for case, names in SUITE.items() for name in names))
)
def test_logits_and_the_way_back(case, name, tmp_path):
    import torch

    model = made(case, name)
    model.save_pretrained(tmp_path / "theirs")
    source = directory.open_directory(tmp_path / "theirs")
    params = read(source)
    assert source.labels == LABELS.get(name)
    inputs = verify.task_batch(source.network.config)
    with torch.no_grad():
        want = verify.task_theirs(name, with_ids_of(model, inputs), inputs)
    found: verify.Difference = verify.differences(logits(source, params, inputs, name), want, inputs)["logits"]
    assert found.relative < TOLERANCE, found

    ids = {"pad_token_id": verify.PADDING, "eos_token_id": verify.EOS}
    save(tmp_path / "ours", source.network, params, extra=ids, labels=source.labels, problem=source.problem)
    again, info = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        same = verify.task_theirs(name, with_ids_of(again.eval(), inputs), inputs)
    torch.testing.assert_close(same["logits"], want["logits"], rtol=1e-6, atol=1e-6)
    keys = json.loads((tmp_path / "ours" / "config.json").read_text())
    family = directory.family_of(source.network.config)  # XLM-R is written as a RoBERTa, mT5 as a T5
    assert keys["architectures"] == [family.tasks[name].name]
    if name in LABELS:
        assert tuple(again.config.id2label.values()) == LABELS[name] and again.config.num_labels == len(LABELS[name])
    if name == "classes":
        assert again.config.problem_type == "single_label_classification"
    reread = directory.open_directory(tmp_path / "ours")
    np.testing.assert_equal(reread.labels, source.labels)
    assert reread.network.config == source.network.config
    if case in ("t5 1.1", "mt5"):  # without a projection to the vocabulary no tensor says so
        assert not source.network.config.tie_embeddings


@pytest.mark.parametrize("case, name", [("bert", "classes"), ("xlnet", "choice"), ("t5", "span"), ("gpt2", "tags")])
def test_verify_compares_logits(case, name, tmp_path):
    model = made(case, name)
    model.config.update({"decoder_start_token_id": 0} if case == "t5" else {})  # as published files say
    model.save_pretrained(tmp_path)
    found = verify.verify(tmp_path)
    assert set(found) == {"logits"} and found["logits"].relative < TOLERANCE
