"""Fine-tuned classes without torch: ours → directory → ours, labels, and what is said of classes that are not there."""

import json

import jax
import numpy as np
import pytest
from flax import traverse_util

from jaxpt import hf
from jaxpt.errors import UserError
from jaxpt.hf import directory, files, reader
from jaxpt.hf.tasks import WORDS, labels_from_json
from jaxpt.models import stored
from jaxpt.models.heads import classes, masked_lm
from jaxpt.models.network import Network
from tests.hf.test_directory import AS_READ, edit, fresh, sized
from tests.models.helpers import EVERY

OUTPUTS = {"classes": 3, "tags": 5}
KINDS = ("bert", "electra", "llama", "t5", "t5_old", "xlnet")
CONFIGS = {name: EVERY[name](layers=1, **AS_READ) for name in KINDS}
CONFIGS["modernbert"] = EVERY["modernbert"](layers=3, pooling="mean", head_bias=True, norm_bias=True, **AS_READ)


def tuned(name, head, outputs=None, **more):
    """(network, random parameters) of a backbone with a head for fine-tuning."""
    config = CONFIGS.get(name) or EVERY[name](**AS_READ)
    heads = classes.declare(config, head, OUTPUTS.get(head) if outputs is None else outputs) | more
    return fresh(Network(config.build(), heads))


def flat(params):
    return traverse_util.flatten_dict(dict(params), sep="/")


@pytest.mark.parametrize("name", CONFIGS)
def test_saved_and_read(name, tmp_path):
    for head in directory.family_of(CONFIGS[name]).tasks:
        network, params = tuned(name, head)
        hf.save(tmp_path / head, network, params)
        source = directory.open_directory(tmp_path / head)
        assert set(source.network.heads) == set(network.heads)
        assert sized(source.network.config) == sized(network.config)
        read = dict(stored.parameters(source.pieces(), stored.stored_params(source.network)))
        lacking = {path for path in flat(params) if source.table.is_lacking(path)}
        assert set(read) == set(flat(params)) - lacking
        for path, x in read.items():
            np.testing.assert_array_equal(x, flat(params)[path])
        assert {path.partition("/segment")[0] for path in lacking} <= {
            "model/head/kernel", "model/vocab_bias", "model/decoder", "model/decoder_bias/table",
            "model/decoder_norm/scale",
        }  # fmt: skip


def test_labels_are_written_and_read(tmp_path):
    labels = ("no", "maybe", "yes")
    hf.save(tmp_path, *tuned("bert", "classes"), labels=labels, problem="multi_label_classification")
    keys = json.loads((tmp_path / "config.json").read_text())
    assert keys["architectures"] == ["BertForSequenceClassification"] and keys["num_labels"] == 3
    assert keys["id2label"] == {"0": "no", "1": "maybe", "2": "yes"}
    assert keys["label2id"] == {"no": 0, "maybe": 1, "yes": 2}
    assert keys["problem_type"] == "multi_label_classification"
    source = directory.open_directory(tmp_path)
    assert (source.labels, source.problem) == (labels, "multi_label_classification")
    edit(tmp_path, id2label={"2": "yes", "0": "no", "1": "maybe"}, problem_type="absent")
    source = directory.open_directory(tmp_path)
    assert (source.labels, source.problem) == (labels, "single_label_classification")


def test_a_regression_has_one_output(tmp_path):
    hf.save(tmp_path, *tuned("roberta", "classes", 1), problem="regression")
    assert directory.open_directory(tmp_path).problem == "regression"
    edit(tmp_path, problem_type="absent")
    assert directory.open_directory(tmp_path).problem == "regression"
    assert directory.open_directory(tmp_path).labels == ("LABEL_0",)


def test_heads_without_labels_write_none(tmp_path):
    for head in ("span", "choice"):
        hf.save(tmp_path / head, *tuned("bert", head))
        assert not {"id2label", "num_labels"} & set(json.loads((tmp_path / head / "config.json").read_text()))
        source = directory.open_directory(tmp_path / head)
        assert (source.labels, source.problem) == (None, None)


@pytest.mark.parametrize(
    "head, labels, message",
    [
        ("classes", ("a", "b"), r"^labels: 2 names, but the head classes has 3 outputs$"),
        ("tags", ("O", "X", "O", "Y", "Z"), r"^labels: 'O' stands there twice$"),
        ("span", ("start", "end"), r"^labels: only the heads classes and tags have labels$"),
    ],
)
def test_labels_that_do_not_fit(head, labels, message, tmp_path):
    with pytest.raises(UserError, match=message):
        hf.save(tmp_path / "out", *tuned("bert", head), labels=labels)
    assert not (tmp_path / "out").exists()


def test_labels_of_another_number_than_the_weights(tmp_path):
    hf.save(tmp_path, *tuned("bert", "tags"))
    edit(tmp_path, id2label={"0": "O", "1": "X"})
    with pytest.raises(UserError, match=r"config\.json: id2label: has the ids 0, 1, but the weights are of 5 labels"):
        directory.open_directory(tmp_path)
    assert labels_from_json("tags", 2, {"id2label": {0: "O", 1: "X"}}) == ("O", "X")
    assert labels_from_json("tags", 2, {}) is None


def test_a_class_whose_logits_are_not_in_the_weights(tmp_path):
    hf.save(tmp_path, *tuned("bert", "tags"))
    tensors = {name: x for name, x in files.Tensors(tmp_path).items() if name != "classifier.weight"}
    files.write(tmp_path, {name: (x.shape, x.dtype) for name, x in tensors.items()}, tensors.items())
    for partial in (False, True):
        with pytest.raises(UserError, match=rf"^{tmp_path}: weights: classifier\.weight is missing$"):
            directory.open_directory(tmp_path, partial=partial)


@pytest.mark.parametrize(
    "name, head",
    [("gpt2", "choice"), ("gpt", "tags"), ("opt", "choice"), ("bart", "tags"), ("t5", "choice"), ("llama", "choice")],
)
def test_a_class_that_a_family_lacks_is_named(name, head, tmp_path):
    family = directory.family_of(EVERY[name]())
    have = ", ".join(WORDS[task] for task in family.tasks)
    message = rf"^{head}: Hugging Face has no {family.model_type} for {WORDS[head]}, only for: {have}$"
    with pytest.raises(UserError, match=message):
        hf.save(tmp_path / "out", *tuned(name, head))
    assert not (tmp_path / "out").exists()


def test_two_heads_are_an_error_and_other_heads_are_left_out(tmp_path):
    config = CONFIGS["bert"]
    network, params = tuned("bert", "classes", **classes.declare(config, "tags", 2))
    with pytest.raises(UserError, match=r"one head of classes, tags, span, choice .* not classes and tags"):
        hf.save(tmp_path / "two", network, params)
    network, params = tuned("bert", "classes", **masked_lm.declare(config))
    hf.save(tmp_path / "one", network, params)
    assert set(hf.load(tmp_path / "one")[0].heads) == {"pooler", "classes"}


def test_options_of_a_pooler_that_is_not_had(tmp_path):
    for name, key, value, words in (
        ("xlnet", "summary_type", "mean", "'mean'"),
        ("electra", "summary_activation", None, "null"),
        ("deberta", "pooler_hidden_act", "tanh", "'tanh'"),
    ):
        hf.save(tmp_path / name, *tuned(name, "choice"))
        edit(tmp_path / name, **{key: value})
        with pytest.raises(UserError, match=rf"config\.json: {key}: {words} is not supported, only \""):
            directory.open_directory(tmp_path / name)


def test_a_pretrained_directory_opens_with_a_new_head(tmp_path):
    """What fits is taken: BERT's pooler, ModernBERT's hidden layer of its masked-LM head."""
    for name, taken in (("bert", {"pooler"}), ("modernbert", {"pooler"}), ("roberta", set()), ("gpt2", set())):
        config = CONFIGS.get(name) or EVERY[name](**AS_READ)
        hf.save(tmp_path / name, *fresh(config))
        heads = classes.declare(config, "classes", 4)
        source = directory.open_directory(tmp_path / name, heads=heads, partial=True)
        assert source.network.heads["classes"].module.outputs == 4
        read = dict(stored.parameters(source.pieces(), stored.stored_params(source.network)))
        assert {path.split("/")[1] for path in read if path.startswith("heads/")} == taken
        assert {p for p in stored.stored_params(source.network) if p.startswith("model/")} <= set(read)


def test_another_tasks_directory_opens_with_a_new_head(tmp_path):
    network, params = tuned("bert", "classes", 3)
    hf.save(tmp_path, network, params)
    source = directory.open_directory(tmp_path, heads=classes.declare(network.config, "classes", 7), partial=True)
    read = dict(stored.parameters(source.pieces(), stored.stored_params(source.network)))
    assert "heads/pooler/dense/kernel" in read and "heads/classes/dense/kernel" not in read
    assert [m.split(" has")[0] for m in source.found.mismatched] == ["classifier.bias", "classifier.weight"]


def test_unused_poolers_of_old_files_are_passed_over(tmp_path):
    network, params = tuned("bert", "tags")
    hf.save(tmp_path, network, params)
    tensors = dict(files.Tensors(tmp_path)) | {"bert.pooler.dense.weight": np.ones((24, 24), np.float32)}
    files.write(tmp_path, {name: (x.shape, x.dtype) for name, x in tensors.items()}, tensors.items())
    jax.tree.map(np.testing.assert_array_equal, params, hf.load(tmp_path)[1])


def test_layers_of_pretraining_heads_that_are_poolers():
    """By the names in transformers: ModernBERT's alone; BERT's pooler has one path, RoBERTa's two layers two names."""
    found = {}
    for name in ("albert", "bert", "deberta", "distilbert", "electra", "modernbert", "roberta"):
        config = CONFIGS.get(name) or EVERY[name]()
        family = directory.family_of(config)
        pretrained = family.network(config, [head for head in family.heads if head != "replaced_token"])
        found[name] = {
            head: reader.renamed(pretrained, Network(config.build(), classes.declare(config, head, 2)))
            for head in family.tasks
        }
    modern = found.pop("modernbert")
    names = ("dense/kernel", "dense/bias", "norm/scale", "norm/bias")
    assert modern == {head: {f"heads/masked_lm/{x}": f"heads/pooler/{x}" for x in names} for head in modern}
    assert not any(renamed for of_heads in found.values() for renamed in of_heads.values())
    other = fresh(EVERY["bert"]())[0]
    assert reader.renamed(other, tuned("modernbert", "classes")[0]) == {}
