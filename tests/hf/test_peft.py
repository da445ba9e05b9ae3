"""Low-rank adapters in peft's layout: there and back, and what cannot be."""

import json
import shutil

import jax
import numpy as np
import pytest
from flax import traverse_util

from jaxpt import cli, hf
from jaxpt import config as configs
from jaxpt.config import LoraConfig
from jaxpt.errors import UserError
from jaxpt.hf import files, imported, peft
from jaxpt.models.network import Network
from jaxpt.train import lora, patterns, state, weights
from tests import families, fine_tuning
from tests.hf import parity
from tests.hf.states import as_run
from tests.hf.test_directory import fresh
from tests.models.helpers import EVERY

RANK = 3
SETTINGS = {"rank": RANK, "alpha": 6.0}
TARGETS = {
    "bert": ["*/attention/query", "*/attention/value"],
    "llama": ["*/attention/query", "*/attention/value", "*/feed_forward/up"],
    "gpt2": ["*/attention/query", "*/attention/value", "*/feed_forward/up"],
    "neox": ["*/attention/query", "*/attention/value", "*/feed_forward/up"],
    "phi": ["*/attention/query", "*/attention/value", "*/feed_forward/*"],
    "t5": ["model/decoder/*/cross_attention/query"],
}


NAMED = {"phi3": ("phi", "self_attn.qkv_proj"), "gpt_neox": ("neox", "attention.query_key_value")}
"""{model_type: (family, module of query and value)}; with whole rotary positions Llama and Falcon say the same."""


def config(family, model=None, **sections):
    given = {"targets": TARGETS[family], **SETTINGS}
    extra = {"objective": {"next_sentence": False}} if family == "bert" else {}
    model = {"dropout": 0.0, **(model or {})}
    return families.config(family, model=model, train={"lora": given}, **extra, **sections)


def made(family, directory, seed=0, model_type=None):
    """A base model and an adapter with nothing zero, written as directories: (network, params, adapter).

    Args:
      family: of the model.
      directory: has the two.
      seed: of the adapter.
      model_type: of the base, one of `NAMED`.
    """
    given = config(family, {} if model_type is None else {"rotary_share": 1.0})
    network, params = fresh(given.objective.network(given.model))
    params = jax.tree.map(lambda x: 0.2 * x, params)
    parity.save_as(model_type, directory / "base", network, params)
    adapter = drawn(given, network, seed)
    written(directory / "adapter", network, given.train.lora, adapter, directory / "base", model_type=model_type)
    return network, params, adapter


def drawn(given, network, seed=0):
    setup = state.setup(given, jax.devices()[:1])
    rng = np.random.default_rng(seed)
    shapes = flat(setup.shapes.params[lora.ADAPTER])
    factors = {path: rng.normal(0, 0.3, x.shape).astype(np.float32) for path, x in shapes.items()}
    return {
        path.removesuffix("/a"): peft.Factors(np.ones(x.shape[:-2], bool), x, factors[f"{path[:-2]}/b"])
        for path, x in factors.items() if path.endswith("/a")
    }  # fmt: skip


def written(out, network, settings, adapter, base=None, trained=None, params=None, model_type=None):
    out.mkdir()
    peft.write(out, network, settings, adapter, trained or {}, params or {}, base and str(base), model_type)


def flat(tree):
    return traverse_util.flatten_dict(tree, sep="/")


def tree_of(adapter):
    return traverse_util.unflatten_dict(
        {f"{path}/{name}": getattr(x, name) for path, x in adapter.items() for name in "ab"}, sep="/"
    )


def merged(settings, params, adapter):
    return lora.merged(settings, {**params, lora.ADAPTER: tree_of(adapter)})


@pytest.mark.parametrize(
    "family", ["bert", "gpt2", *(pytest.param(x, marks=pytest.mark.slow) for x in ("llama", "neox", "phi", "t5"))]
)
def test_there_and_back(family, tmp_path, capsys):
    """An adapter directory becomes a run; its export has the same tensors, its weights are the sum."""
    _, params, adapter = made(family, tmp_path)
    assert cli.main(["import", str(tmp_path / "adapter"), str(tmp_path / "run")]) == 0
    assert "low-rank adapter of" in capsys.readouterr().out
    found = configs.load(tmp_path / "run").train.lora
    assert (found.rank, found.alpha) == (RANK, 6.0) and set(found.targets) == set(adapter)
    want = flat(merged(config(family).train.lora, params, adapter))
    read = flat(weights.read(tmp_path / "run", 0))
    for path in want:
        np.testing.assert_allclose(read[path], want[path], rtol=1e-5, atol=1e-6, err_msg=path)
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--adapter"]) == 0
    one, two = (files.Tensors(tmp_path / name, (peft.WEIGHTS,)) for name in ("adapter", "out"))
    assert set(one) == set(two)
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)
    keys = [json.loads((tmp_path / name / peft.CONFIG).read_text()) for name in ("adapter", "out")]
    assert keys[0] | {"base_model_name_or_path": None} == keys[1]


@pytest.mark.parametrize("model_type", NAMED)
def test_an_adapter_has_the_names_of_its_base(model_type, tmp_path, capsys):
    """There and back, though another architecture can say the same."""
    family, module = NAMED[model_type]
    network, _, adapter = made(family, tmp_path, model_type=model_type)
    assert hf.directory.family_of(network.config).model_type != model_type
    tensors = dict(files.Tensors(tmp_path / "adapter", (peft.WEIGHTS,)))
    assert any(name.endswith(f"{module}.lora_A.weight") for name in tensors)
    assert cli.main(["import", str(tmp_path / "adapter"), str(tmp_path / "run")]) == 0
    assert set(configs.load(tmp_path / "run").train.lora.targets) == set(adapter)
    capsys.readouterr()
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--adapter"]) == 0
    class_name = hf.directory.families()[model_type].classes
    assert f"low-rank adapter of {class_name}, step 0" in capsys.readouterr().out
    again = files.Tensors(tmp_path / "out", (peft.WEIGHTS,))
    assert set(again) == set(tensors)
    for name, x in tensors.items():
        np.testing.assert_array_equal(again[name], x, err_msg=name)


def adapter_of(network, settings):
    """Random factors of the matrices of a network that the settings name."""
    tree = patterns.leaves(network.shapes(), network.logical_axes())
    held, shapes, axes = lora.targets(settings, tree), flat(network.shapes()), flat(network.logical_axes())
    described, _ = lora.describe(settings, {path: shapes[path] for path in held}, axes)
    rng = np.random.default_rng(0)
    factors = {path: rng.normal(size=x.shape).astype(np.float32) for path, x in described.items()}
    return {path: peft.Factors(x, *(factors[f"adapter/{path}/{n}"] for n in "ab")) for path, x in held.items()}


HEADS = {
    ("roberta", "classes"): ["classifier"], ("distilbert", "classes"): ["classifier", "pre_classifier"],
    ("bert", "span"): ["qa_outputs"], ("t5", "classes"): ["classification_head.dense", "classification_head.out_proj"],
    ("gpt2", "classes"): ["score"], ("bert", "choice"): ["bert.pooler.dense", "classifier"],
}  # fmt: skip
"""{(architecture, head): modules that its adapter saves}"""


def fine_tuned(name, head, outputs=2):
    """(network, parameters) of a class for fine-tuning."""
    model = EVERY[name]()
    return fresh(hf.directory.family_of(model).network(model, (head,), 1 if head == "choice" else outputs))


@pytest.mark.parametrize(("name", "head"), HEADS)
def test_the_head_of_a_class_is_saved_as_a_whole(name, head, tmp_path):
    """Also where it was not trained, as its base need not have it, and where it has an adapter, which is merged."""
    network, params = fine_tuned(name, head)
    settings = LoraConfig(targets=("*/attention/query", "heads/*"), rank=2)
    adapter = adapter_of(network, settings)
    assert any(path.startswith("heads/") for path in adapter)
    written(tmp_path / "out", network, settings, adapter, params=flat(params))
    assert json.loads((tmp_path / "out" / peft.CONFIG).read_text())["modules_to_save"] == HEADS[name, head]
    found = peft.read(tmp_path / "out", network)
    assert set(found.factors) == {path for path in adapter if path.startswith("model/")}
    saved = {path: x for path, _, x in found.saved}
    assert saved.keys() == {path for path in flat(params) if path.startswith("heads/")}
    for path, x in saved.items():
        np.testing.assert_array_equal(x, flat(params)[path], err_msg=path)


def beside_a_backbone(directory, head):
    """A backbone alone in Hugging Face's form, and an adapter of it with a head of three outputs: its parameters."""
    network, params = fine_tuned("bert", head, 3)
    hf.save(directory / "base", Network(network.config.build()), {"model": params["model"]})
    settings = LoraConfig(targets=("*/attention/query",), rank=2)
    adapter = adapter_of(network, settings)
    written(directory / "adapter", network, settings, adapter, directory / "base", params=flat(params))
    return flat(params)


@pytest.mark.parametrize(
    ("head", "kind"), [("classes", "classification"), ("tags", "tagging"), ("choice", "multiple_choice")]
)
def test_a_base_without_the_head_gets_that_of_the_adapter(head, kind, tmp_path):
    params = beside_a_backbone(tmp_path, head)
    opened = imported.open_source(tmp_path / "base", False, (), tmp_path / "adapter")
    outputs = {"most_choices": 4} if head == "choice" else {"labels": ["LABEL_0", "LABEL_1", "LABEL_2"]}
    assert imported.task_of(opened) == {"kind": kind, **outputs}
    found = peft.read(tmp_path / "adapter", opened.network)
    assert {path for path, _, _ in (*opened.pieces(), *found.saved)} == set(params)
    if head == "classes":
        rewritten(tmp_path / "adapter", without("bert.pooler.dense.weight"))
        with pytest.raises(UserError, match=rf"^{tmp_path}/base: weights: bert\.pooler\.dense\.weight is missing$"):
            imported.open_source(tmp_path / "base", False, (), tmp_path / "adapter")
        assert imported.open_source(tmp_path / "base", True, (), tmp_path / "adapter").network == opened.network


def test_an_adapter_with_its_head_becomes_a_run_of_its_task(tmp_path, capsys):
    params = beside_a_backbone(tmp_path, "classes")
    fine_tuning.vocabulary(tmp_path / "base")
    command = ["import", str(tmp_path / "adapter"), str(tmp_path / "run"), "task.labels=[bad,so so,good]"]
    assert cli.main(command) == 0
    assert "initialised at random" not in capsys.readouterr().out
    assert configs.load(tmp_path / "run").task.labels == ("bad", "so so", "good")
    read = flat(weights.read(tmp_path / "run", 0))
    for path in ("heads/classes/dense/kernel", "heads/pooler/dense/kernel", "model/token_embed/table"):
        np.testing.assert_array_equal(read[path], params[path], err_msg=path)


def test_a_run_that_trains_its_adapter_alone_exports_its_head(tmp_path):
    given = fine_tuning.recipe(tmp_path, model={"layers": 1}, train={"lora": {"rank": 2}, "trainable": ["adapter"]})
    network = given.objective.network(given.model)
    adapter = adapter_of(network, given.train.lora)
    factors = {f"adapter/{path}/{n}": getattr(x, n) for path, x in adapter.items() for n in "ab"}
    params = as_run(given, factors)
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--adapter"]) == 0
    tensors = files.Tensors(tmp_path / "out", (peft.WEIGHTS,))
    ours = params["heads/classes/dense/kernel"]
    np.testing.assert_array_equal(tensors["base_model.model.classifier.weight"], ours.T)
    assert "base_model.model.bert.pooler.dense.weight" in tensors


def test_a_backbone_alone_has_no_prefix(tmp_path):
    """`BertModel` calls its layers encoder.layer, BertForMaskedLM bert.encoder.layer."""
    network, _ = fresh(Network(EVERY["bert"]().build()))
    settings = LoraConfig(rank=2)
    adapter = adapter_of(network, settings)
    written(tmp_path / "out", network, settings, adapter)
    keys = json.loads((tmp_path / "out" / peft.CONFIG).read_text())
    assert keys["target_modules"][0] == "encoder.layer.0.attention.self.query"
    found = peft.read(tmp_path / "out", network)
    assert set(found.factors) == set(adapter)
    for path, x in adapter.items():
        np.testing.assert_allclose(found.factors[path].a @ found.factors[path].b, x.a @ x.b, rtol=1e-5, atol=1e-6)


QUICK = ("albert", "gpt2", "modernbert", "t5", "xlnet")
SLOW = sorted(set(EVERY) - {*QUICK, "t5_shared", "t5_lm"})  # transformers has no t5_shared and no t5_lm


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_every_architecture(name, tmp_path):
    network, _ = fresh(EVERY[name]())
    given = LoraConfig(targets=("*/attention/query", "*/attention/value", "*/feed_forward/*"), rank=2, alpha=3.0)
    adapter = adapter_of(network, given)
    if name == "xlnet":
        with pytest.raises(UserError, match="attention/query/kernel is no linear layer in Hugging Face's class"):
            written(tmp_path / "out", network, given, adapter)
        return
    written(tmp_path / "out", network, given, adapter)
    found = peft.read(tmp_path / "out", network)
    assert set(found.factors) == set(adapter) and (found.config.rank, found.config.alpha) == (2, 3.0)
    for path, x in adapter.items():
        np.testing.assert_allclose(found.factors[path].a @ found.factors[path].b, x.a @ x.b, rtol=1e-4, atol=1e-5)


def test_a_joined_matrix_whose_adapter_is_none_of_blocks(tmp_path):
    """What peft trains, or has just made: each of ours has all of A, and its part of B."""
    network, _, adapter = made("gpt2", tmp_path)
    tensors = {name: np.array(x) for name, x in files.Tensors(tmp_path / "adapter", (peft.WEIGHTS,)).items()}
    fused = [name for name in tensors if "c_attn.lora_B" in name]
    for value in (1.0, 0.0):
        tensors |= {name: np.full_like(tensors[name], value) for name in fused}
        announced = {name: (x.shape, x.dtype) for name, x in tensors.items()}
        files.write(tmp_path / "adapter", announced, tensors.items(), stem="adapter_model")
        found = peft.read(tmp_path / "adapter", network)
        assert found.config.rank == 2 * RANK and len(found.factors) == len(adapter) + 1
        for part in ("query", "key", "value"):
            a, b = found.factors[f"model/decoder/segment_0/block_0/attention/{part}/kernel"][1:]
            name = "base_model.model.transformer.h.1.attn.c_attn.lora_A.weight"
            np.testing.assert_array_equal(a[1], tensors[name].T)
            assert (b == value).all()


def test_query_and_value_of_a_joined_matrix_are_blocks(tmp_path):
    _, _, adapter = made("gpt2", tmp_path)
    tensors = files.Tensors(tmp_path / "adapter", (peft.WEIGHTS,))
    name = "base_model.model.transformer.h.1.attn.c_attn.lora_{}.weight"
    a, b = tensors[name.format("A")], tensors[name.format("B")]
    assert a.shape == (2 * RANK, 32) and b.shape == (96, 2 * RANK)
    query, value = (adapter[f"model/decoder/segment_0/block_0/attention/{x}/kernel"] for x in ("query", "value"))
    product = np.concatenate([query.a[1] @ query.b[1], np.zeros((32, 32)), value.a[1] @ value.b[1]], 1)
    np.testing.assert_allclose((b @ a).T, product, rtol=1e-5, atol=1e-6)
    keys = json.loads((tmp_path / "adapter" / peft.CONFIG).read_text())
    assert (keys["r"], keys["lora_alpha"], keys["fan_in_fan_out"]) == (6, 12.0, True)
    assert keys["rank_pattern"] == {f"transformer.h.{n}.mlp.c_fc": 3 for n in (0, 1)}
    assert keys["alpha_pattern"] == {f"transformer.h.{n}.mlp.c_fc": 6.0 for n in (0, 1)}


def changed(directory, **keys):
    """The adapter with other keys in its configuration."""
    file = directory / peft.CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


def test_other_ranks_and_scales_are_the_same_sum(tmp_path):
    """Scales by pattern and by √rank; lower ranks are filled up."""
    network, params, adapter = made("bert", tmp_path)
    path, other = adapter
    lower = {**adapter, other: peft.Factors(adapter[other].held, adapter[other].a[..., :2], adapter[other].b[:, :2])}
    settings = LoraConfig(targets=("*",), **SETTINGS)
    shutil.rmtree(tmp_path / "adapter")
    written(tmp_path / "adapter", network, settings, lower)
    changed(
        tmp_path / "adapter",
        use_rslora=True,
        alpha_pattern={r"attention\.self\.value": 1.0},
        rank_pattern={r"attention\.self\.value": 2},
    )
    found = peft.read(tmp_path / "adapter", network)
    scale = {path: 6.0 / 3**0.5, other: 1.0 / 2**0.5}
    got = flat(merged(found.config, params, found.factors))
    for name, x in lower.items():
        want = flat(params)[name] + scale[name] * x.a @ x.b
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5)


def test_some_layers_and_modules_that_are_saved_as_a_whole(tmp_path):
    network, params, adapter = made("bert", tmp_path)
    few = {path: x._replace(held=np.array([False, True])) for path, x in adapter.items()}
    norm = "model/encoder/segment_0/block_0/attention_norm/{}"
    trained = {norm.format("scale"): np.array([False, True]), "heads/masked_lm/dense/kernel": np.array(True)}
    written(tmp_path / "out", network, LoraConfig(**SETTINGS), few, None, trained, flat(params))
    keys = json.loads((tmp_path / "out" / peft.CONFIG).read_text())
    assert keys["modules_to_save"] == [
        "bert.encoder.layer.1.attention.output.LayerNorm", "cls.predictions.transform.dense"
    ]  # fmt: skip
    assert keys["target_modules"] == [f"bert.encoder.layer.1.attention.self.{x}" for x in ("query", "value")]
    found = peft.read(tmp_path / "out", network)
    saved = {(path, layer): x for path, layer, x in found.saved}
    assert len(saved) == 4
    np.testing.assert_array_equal(saved[norm.format("scale"), 1], flat(params)[norm.format("scale")][1])
    for path, x in found.factors.items():
        assert not x.a[0].any() and (x.a[1] == adapter[path].a[1]).all()


@pytest.mark.parametrize(
    ("family", "path", "said"),
    [
        ("gpt2", "model/token_embed/table", "model/token_embed/table is no linear layer in Hugging Face's class"),
        ("gpt2", "heads/other/kernel", "heads/other/kernel is not in Hugging Face's class"),
    ],
)
def test_what_peft_has_not_is_refused(family, path, said, tmp_path):
    network, _, _ = made(family, tmp_path)
    with pytest.raises(UserError, match=said):
        written(tmp_path / "out", network, LoraConfig(), {path: peft.Factors(np.array(True), np.ones((200, 3)), 0)})


def test_the_revision_of_a_base_has_a_key_of_its_own(tmp_path):
    network, _, adapter = made("bert", tmp_path)
    of_hub = "google-t5/t5-small"
    for base, *wanted in ((f"{of_hub}@df1b051", of_hub, "df1b051"), (of_hub, of_hub, None), (None, None, None)):
        written(out := tmp_path / f"of {wanted}".replace("/", "-"), network, LoraConfig(**SETTINGS), adapter, base)
        keys = json.loads((out / peft.CONFIG).read_text())
        assert [keys["base_model_name_or_path"], keys["revision"]] == wanted


def test_no_adapter_at_all_is_none_to_write(tmp_path):
    network, _, _ = made("bert", tmp_path)
    with pytest.raises(UserError, match=r"^train\.lora\.targets: none of them is in Hugging Face's class$"):
        written(tmp_path / "out", network, LoraConfig(**SETTINGS), {})
    assert not any((tmp_path / "out").iterdir())


def test_what_peft_cannot_save_is_refused(tmp_path):
    network, params, adapter = made("bert", tmp_path)
    for number, (path, said) in enumerate([
        ("model/token_embed/table", "model/token_embed/table is tied or no module of its own"),
        ("model/encoder/segment_0/block_0/attention/query/bias", "has a low-rank adapter, and is trained besides"),
    ]):  # fmt: skip
        held = np.ones(2 if "segment" in path else (), bool)
        with pytest.raises(UserError, match=said):
            written(tmp_path / str(number), network, LoraConfig(**SETTINGS), adapter, None, {path: held}, flat(params))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type: 'IA3' is not supported, only 'LORA'"),
        ({"use_dora": True}, "use_dora: true is not supported: it may change what the adapter does; merge it with"),
        ({"bias": "all"}, """bias: 'all' is not supported, only "none"; merge it with peft"""),
        ({"lora_bias": True}, "lora_bias: true is not supported"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "target_parameters: \\['mlp.experts.down_proj'\\] is not"),
        ({"kasa_config": {"rank": 2}}, "kasa_config: .* is not supported"),
        ({"of_a_later_peft": 0.5}, "of_a_later_peft: 0.5 is not supported: it may change what the adapter does"),
        *(
            ({"init_lora_weights": start}, f"init_lora_weights: '{start}' is not supported: its factors belong to a ch")
            for start in ("pissa", "pissa_niter_4", "OLoRA", "corda", "loftq", "lora_ga", "of_a_later_peft")
        ),
        ({"r": 5}, "query: lora_A has rank 3, but adapter_config.json says 5"),
        ({"rank_pattern": {"query": 2}}, "query: lora_A has rank 3, but adapter_config.json says 2"),
        ({"rank_pattern": {"(": 2}}, "rank_pattern: '\\(': .*wants a regular expression of RE2"),
        ({"modules_to_save": "wte"}, "modules_to_save: wants a list of names, got 'wte'"),
        ({"revision": 3}, "revision: wants a string, got 3"),
    ],
)
def test_other_kinds_of_adapters_are_refused(keys, said, tmp_path):
    network, _, _ = made("bert", tmp_path)
    changed(tmp_path / "adapter", **keys)
    with pytest.raises(UserError, match=said):
        peft.read(tmp_path / "adapter", network)


QUERY = "bert.encoder.layer.1.attention.self.query"
TABLE = "bert.embeddings.word_embeddings"


def alone(name, *shape):
    return lambda tensors: {f"{peft.PREFIX}{name}": np.ones(shape, np.float32)}


def beside(name, *shape):
    return lambda tensors: tensors | alone(name, *shape)(tensors)


def without(name):
    return lambda tensors: {key: x for key, x in tensors.items() if key != f"{peft.PREFIX}{name}"}


def rewritten(directory, change):
    """The adapter with other tensors."""
    tensors = change({name: np.array(x) for name, x in files.Tensors(directory, (peft.WEIGHTS,)).items()})
    announced = {name: (x.shape, x.dtype) for name, x in tensors.items()}
    files.write(directory, announced, tensors.items(), stem="adapter_model")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (beside(f"{QUERY}.lora_A.weight", 3, 31), f"{QUERY}: lora_A (3, 31) and lora_B (32, 3) do not fit the model"),
        (beside(f"{QUERY}.lora_B.weight", 32, 2), f"{QUERY}: lora_A (3, 32) and lora_B (32, 2) do not fit the model"),
        (alone("cls.predictions.transform.dense.bias", 32), "has no low-rank adapter"),
        (without(f"{QUERY}.lora_B.weight"), f"{QUERY} has only one of lora_A and lora_B"),
        (
            beside(f"{TABLE}.lora_embedding_A", 3, 200),
            f"{TABLE}.lora_embedding_A is no factor of a linear layer; merge",
        ),
        (beside(f"{TABLE}.base_layer.weight", 200, 32), f"{TABLE}.base_layer.weight: a weight of the base, which the "),
        (
            beside("cls.predictions.transform.dense.bias", 31),
            "modules_to_save: cls.predictions.transform.dense.bias has shape (31,), this configuration expects (32,)",
        ),
    ],
)
def test_tensors_that_are_no_adapter_of_the_model_are_named(change, said, tmp_path, capsys):
    """In one line, with the directory; nothing is imported."""
    made("bert", tmp_path)
    rewritten(tmp_path / "adapter", change)
    assert cli.main(["import", str(tmp_path / "adapter"), str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert f"{tmp_path / 'adapter'}: {said}" in message and len(message.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base"]


def test_a_rank_of_0_is_refused(tmp_path):
    network, _, _ = made("bert", tmp_path)
    changed(tmp_path / "adapter", r=0)
    rewritten(tmp_path / "adapter", lambda tensors: {
        name: x[:0] if "lora_A" in name else x[:, :0] for name, x in tensors.items()
    })  # fmt: skip
    with pytest.raises(UserError, match=r"query: lora_A \(0, 32\) and lora_B \(32, 0\) do not fit the model"):
        peft.read(tmp_path / "adapter", network)


@pytest.mark.parametrize("alpha", [-6.0, 0.0])
def test_scales_that_are_not_positive(alpha, tmp_path):
    network, _, adapter = made("bert", tmp_path)
    changed(tmp_path / "adapter", lora_alpha=alpha)
    found = peft.read(tmp_path / "adapter", network)
    for path, x in adapter.items():
        ours = found.config.alpha / found.config.rank * (found.factors[path].a @ found.factors[path].b)
        np.testing.assert_allclose(ours, alpha / RANK * (x.a @ x.b), rtol=1e-5, atol=1e-6)


def test_an_adapter_of_another_model_is_refused(tmp_path, capsys):
    made("bert", tmp_path)
    (tmp_path / "other").mkdir()
    network, _, _ = made("gpt2", tmp_path / "other")
    with pytest.raises(UserError, match=r"layer\.0\.attention\.self\.query is no linear layer of this gpt2"):
        peft.read(tmp_path / "adapter", network)
    changed(tmp_path / "adapter", base_model_name_or_path="google/bert")
    assert cli.main(["import", str(tmp_path / "adapter"), str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert "adapter: its base model google/bert: no such directory" in message and "--base DIR" in message
    base = ["--base", str(tmp_path / "base")]
    assert cli.main(["import", str(tmp_path / "adapter"), str(tmp_path / "run"), *base]) == 0
    assert cli.main(["import", str(tmp_path / "base"), str(tmp_path / "plain")]) == 0
    assert cli.main(["export", str(tmp_path / "plain"), str(tmp_path / "out"), "--adapter"]) == 2
    assert "has no low-rank adapter (train.lora); leave --adapter out" in capsys.readouterr().err
