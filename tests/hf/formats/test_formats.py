"""Checkpoints of T5X, MaxText and Flax, written in the layouts of their code: the weights are those of the twin."""

import json
import shutil

import jax
import numpy as np
import pytest
from flax import serialization

from jaxpt import hf
from jaxpt.cli import main
from jaxpt.errors import UserError
from jaxpt.hf import directory, files, reader
from jaxpt.hf.formats import maxtext, msgpack_files
from jaxpt.models import stored
from jaxpt.models.llama import LlamaConfig
from jaxpt.models.t5 import T5Config
from jaxpt.study import recipes
from jaxpt.train import preflight, weights
from tests import families
from tests.hf.formats import layouts
from tests.hf.states import to_hf
from tests.hf.test_directory import AS_READ, fresh, sized
from tests.models.helpers import EVERY

SIZES = {"vocab_size": 101, "embed_dim": 24, "heads": 3, "head_dim": 10, "mlp_dim": 40, "layers": 3}
T5 = {
    "t5": {"feed_forward": "relu", "tie_embeddings": True, "decoder_layers": 2},
    "t5_1_1": {"feed_forward": "gated_gelu"},
    "umt5": {"bias_per_layer": True},
}


def t5_config(name):
    return T5Config(**SIZES, **T5[name], dropout=0.1, **AS_READ)


def llama_config(**more):
    return LlamaConfig(**SIZES, kv_heads=1, epsilon=1e-5, max_positions=2048, dropout=0.0, **more, **AS_READ)


def twin(path, config):
    """A Hugging Face directory with random weights: (network, params, {their name: tensor})."""
    network, params = fresh(config)
    hf.save(path, network, params)
    return network, params, dict(files.Tensors(path))


def check_same(path, network, params):
    again, loaded = hf.load(path)
    assert sized(again.config) == sized(network.config)
    jax.tree.map(np.testing.assert_array_equal, params, loaded)


@pytest.mark.parametrize(
    ("name", "scan", "layout", "version"),
    [
        ("t5", False, "tensorstore", 3), ("t5", False, "msgpack", 0), ("t5", True, "tensorstore", 3),
        ("t5_1_1", False, "tensorstore", 1), ("t5_1_1", True, "orbax", 3), ("umt5", True, "msgpack", 3),
    ],
)  # fmt: skip
def test_t5x(name, scan, layout, version, tmp_path):
    network, params, state = twin(tmp_path / "twin", t5_config(name))
    layouts.write_t5x(tmp_path / "checkpoint_7", layouts.t5x(state, scan), layout, version)
    assert reader.reads(tmp_path / "checkpoint_7") and reader.kind(tmp_path / "checkpoint_7") == "t5"
    check_same(tmp_path / "checkpoint_7", network, params)


@pytest.mark.parametrize("step", [2, 3])
def test_switch_of_t5x(step, tmp_path):
    """The last of so many layers is sparse, as released, and the capacity depends on the length."""
    options = {"layers": 6, "experts": 5, "sparse_every": step, "router_jitter": 0.01, "router_z_weight": 0.001}
    released = {"capacity_factor": 1.25, "eval_capacity_factor": 2.0, "balance_weight": 0.01}
    config = T5Config(**SIZES | T5["t5"] | options | released | {"decoder_layers": 6}, dropout=0.1, **AS_READ)
    network, params = fresh(config)
    table = directory.families()["switch_transformers"].table_of(network)
    state = to_hf(params, table, network, tied=False)
    layouts.write_t5x(tmp_path / "checkpoint_7", layouts.t5x(state))
    check_same(tmp_path / "checkpoint_7", network, params)


def test_sparse_layers_of_t5x_that_are_no_period_are_named(tmp_path):
    """Of six layers the second and the last: neither every second nor every third."""
    options = {"layers": 6, "experts": 2, "sparse_every": 3, "decoder_layers": 6}
    network, params = fresh(T5Config(**SIZES | T5["t5"] | options, **AS_READ))
    table = directory.families()["switch_transformers"].table_of(network)
    arrays = layouts.t5x(to_hf(params, table, network, tied=False))
    moved = {path: path.replace("encoder/layers_2/mlp", "encoder/layers_1/mlp") for path in arrays}
    back = {path: path.replace("encoder/layers_1/mlp", "encoder/layers_2/mlp") for path in arrays}
    arrays = {moved[path] if moved[path] != path else back[path]: x for path, x in arrays.items()}
    layouts.write_t5x(tmp_path / "checkpoint_7", arrays, "msgpack", 3)
    said = rf"^{tmp_path}/checkpoint_7: encoder: the layers \[1, 5\] are sparse, expected one in 3: \[1, 4\]$"
    with pytest.raises(UserError, match=said):
        hf.load(tmp_path / "checkpoint_7")


@pytest.mark.parametrize(("scan", "ocdbt", "zarr3"), [(True, True, False), (False, False, False), (True, True, True)])
def test_maxtext(scan, ocdbt, zarr3, tmp_path):
    network, params, state = twin(tmp_path / "twin", llama_config())
    layouts.write_maxtext(tmp_path / "0", layouts.maxtext(state, 3, 1, scan), ocdbt, zarr3)
    again, loaded = hf.load(tmp_path / "0")
    assert sized(again.config) == sized(network.config)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), params, loaded)


def test_maxtext_with_the_positions_of_llama_3(tmp_path):
    """Rotary pairs side by side; the twin's config.json says so."""
    scaled = {"rope_scaling": "llama3", "rope_factor": 8.0, "rope_theta": 5e5}
    network, params, state = twin(tmp_path / "twin", llama_config(**scaled))
    layouts.write_maxtext(tmp_path / "0", layouts.maxtext(state, 3, 1, paired=True))
    shutil.copy(tmp_path / "twin" / "config.json", tmp_path / "0")
    again, loaded = hf.load(tmp_path / "0")
    assert sized(again.config) == sized(network.config)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), params, loaded)


@pytest.mark.parametrize(("name", "shards"), [("bert", 1), ("gpt2", 3), ("t5", 1), ("llama", 1)])
def test_flax(name, shards, tmp_path):
    network, params, state = twin(tmp_path, EVERY[name](**AS_READ))
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / files.CHECKSUMS).unlink(missing_ok=True)
    layouts.write_flax(tmp_path, layouts.flax(state), shards)
    check_same(tmp_path, network, params)


def test_an_array_in_chunks_and_one_of_bfloat16(tmp_path, monkeypatch):
    tree = {"a": np.arange(30, dtype=np.float32).reshape(5, 6), "b": jax.numpy.ones((2, 3), "bfloat16")}
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 40)
    (tmp_path / "f").write_bytes(serialization.to_bytes(tree))
    found = msgpack_files.read(tmp_path / "f")
    for name, x in tree.items():
        assert found[name].shape == x.shape and found[name].dtype == x.dtype
        np.testing.assert_array_equal(found[name].load(), x)


# ---- as a user ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """{form: directory of a whole checkpoint}, made once; a test changes a copy."""
    path = tmp_path_factory.mktemp("whole")
    _, _, t5 = twin(path / "t5", t5_config("t5_1_1"))
    layouts.write_t5x(path / "t5x", layouts.t5x(t5))
    _, _, llama = twin(path / "llama", llama_config())
    layouts.write_maxtext(path / "maxtext", layouts.maxtext(llama, 3, 1))
    twin(path / "flax", EVERY["bert"](**AS_READ))
    layouts.write_flax(path / "flax", layouts.flax(dict(files.Tensors(path / "flax"))))
    (path / "flax" / "model.safetensors").unlink()
    return path


@pytest.mark.parametrize("form", ["t5x", "maxtext", "flax"])
def test_import(form, whole, tmp_path, capsys):
    assert main(["import", str(whole / form), str(tmp_path / "run")]) == 0
    assert f"parameters from {whole / form}" in capsys.readouterr().out
    assert (tmp_path / "run" / "checkpoints" / "0").is_dir()


def test_a_run_starts_from_it(whole):
    """What `init_from.path` reads: the kind of the model, its network and its parameters by path."""
    for form, family in (("t5x", "t5"), ("maxtext", "llama"), ("flax", "bert")):
        preflight._check_origin(families.config(family, init_from={"path": str(whole / form)}), whole / form)
        arrays, network, _ = weights.open_weights(whole / form)
        assert {path for path, _ in arrays} == set(stored.stored_params(network))


def test_a_recipe_names_the_vocabulary_that_such_a_directory_lacks(whole, tmp_path):
    """`init_from.path` of T5X or MaxText, and data.tokenizer.path: the recipe needs no model."""
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat"]))
    tree = {"init_from": {"path": str(whole / "maxtext")}, "data": {"tokenizer": {"path": str(vocabulary)}}}
    complete = recipes.inherit(tree)
    tokenizer = complete["data"]["tokenizer"]
    assert (complete["model"]["kind"], tokenizer["kind"], tokenizer["path"]) == ("llama", "wordpiece", str(vocabulary))
    with pytest.raises(UserError, match="no known vocabulary in this directory"):
        recipes.inherit({**tree, "data": {}})


def test_verify_wants_what_transformers_reads(whole, tmp_path, capsys):
    assert main(["import", str(whole / "t5x"), str(tmp_path / "run"), "--verify"]) == 2
    assert "--verify needs a directory that transformers reads" in capsys.readouterr().err


def without(*names):
    return lambda path: [shutil.rmtree(x) if x.is_dir() else x.unlink() for name in names for x in [path / name]]


def half(name):
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[: (path / name).stat().st_size // 2])


def another_model(path):
    """A decoder alone, as T5X has it."""
    content = serialization.msgpack_restore((path / "checkpoint").read_bytes())
    del content["optimizer"]["target"]["encoder"]
    (path / "checkpoint").write_bytes(serialization.msgpack_serialize(content))


def outside(path):
    content = serialization.msgpack_restore((path / "checkpoint").read_bytes())
    content["optimizer"]["target"]["token_embedder"]["embedding"]["kvstore"]["path"] = "../../etc"
    (path / "checkpoint").write_bytes(serialization.msgpack_serialize(content))


def without_parameters(path):
    content = serialization.msgpack_restore((path / "checkpoint").read_bytes())
    del content["optimizer"]["target"]
    (path / "checkpoint").write_bytes(serialization.msgpack_serialize(content))


def mistral(path):
    (path / "config.json").write_text(json.dumps({"model_type": "mistral"}))


BAD = [
    ("t5x", half("checkpoint"), "checkpoint: is damaged, half-written or no file of flax.serialization"),
    ("t5x", without("target.encoder.layers_1.mlp.wo.kernel"), "target.encoder.layers_1.mlp.wo.kernel: is missing"),
    ("t5x", without("target.token_embedder.embedding/1.0"), "has 1 of its 2 chunks; the checkpoint is half-written"),
    ("t5x", another_model, "is not T5X's T5, of which encoder and decoder are read"),
    ("t5x", outside, "token_embedder/embedding is neither an array nor a directory beside it"),
    (
        "t5x",
        without_parameters,
        "copy/checkpoint: has no parameters under optimizer/target; expected a checkpoint of T5X",
    ),
    ("maxtext", without("items/d"), "is missing; the checkpoint is half-written or half-copied"),
    ("maxtext", without("items/manifest.ocdbt"), "is missing; the checkpoint is half-written or half-copied"),
    (
        "maxtext",
        half("items/_METADATA"),
        "is a checkpoint of Orbax, neither T5X's nor of MaxText's Llama, or it is damaged",
    ),
    ("maxtext", mistral, "of MaxText only llama is read"),
    ("flax", half("flax_model.msgpack"), "flax_model.msgpack: is damaged, half-written"),
    ("flax", without("config.json"), "has weights of Flax and no config.json; add that of the model"),
]


@pytest.mark.parametrize(("form", "change", "words"), BAD)
def test_bad_checkpoints(form, change, words, whole, tmp_path, capsys):
    shutil.copytree(whole / form, tmp_path / "copy")
    change(tmp_path / "copy")
    assert main(["import", str(tmp_path / "copy"), str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert words in said and len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["checkpoint_5.tmp-1234", "0.orbax-checkpoint-tmp-7"])
def test_a_directory_that_was_not_renamed_is_half_written(name, whole, tmp_path):
    shutil.copytree(whole / ("t5x" if "_5" in name else "maxtext"), tmp_path / name)
    with pytest.raises(UserError, match="is half-written"):
        hf.load(tmp_path / name)


def test_missing_layers_are_named(whole, tmp_path):
    content = layouts.t5x(dict(files.Tensors(whole / "t5")))
    del content["decoder/layers_1/mlp/wi_1/kernel"]
    layouts.write_t5x(tmp_path / "step", content, "msgpack")
    with pytest.raises(UserError, match=r"decoder\.block\.1\.layer\.2\.DenseReluDense\.wi_1\.weight is missing"):
        hf.load(tmp_path / "step")


@pytest.mark.parametrize(
    ("form", "path"),
    [
        ("t5x", "decoder/layers_1/mlp/wi_2/kernel"), ("t5x", "encoder/layers_0/attention/sinks/kernel"),
        ("maxtext", "decoder/layers_1/self_attention/sinks/kernel"), ("maxtext", "decoder/layers_1/gate/kernel"),
    ],
)  # fmt: skip
def test_an_array_that_the_model_has_not_is_named_as_it_is_there(form, path, whole, tmp_path):
    """It is not left out in silence."""
    if form == "t5x":
        arrays = layouts.t5x(dict(files.Tensors(whole / "t5")))
        layouts.write_t5x(tmp_path / "step", arrays | {path: np.ones((2, 3), np.float32)}, "msgpack")
    else:
        arrays = layouts.maxtext(dict(files.Tensors(whole / "llama")), 3, 1, scan=False)
        layouts.write_maxtext(tmp_path / "step", arrays | {path: np.ones((2, 3), np.float32)})
    with pytest.raises(UserError, match=rf"^{tmp_path}/step: weights: {path} not in a "):
        hf.load(tmp_path / "step")


def test_the_config_json_of_the_twin_says_what_no_shape_tells(whole, tmp_path):
    shutil.copytree(whole / "t5x", tmp_path / "step")
    keys = json.loads((whole / "t5" / "config.json").read_text())
    told = {"layer_norm_epsilon": 1e-5, "relative_attention_max_distance": 64}
    (tmp_path / "step" / "config.json").write_text(json.dumps(keys | told))
    (network, params), (alone, same) = (hf.load(path) for path in (tmp_path / "step", whole / "t5x"))
    assert (alone.config.epsilon, alone.config.max_distance) == (1e-6, 128)
    assert network.config == alone.config.model_copy(update={"epsilon": 1e-5, "max_distance": 64})
    jax.tree.map(np.testing.assert_array_equal, params, same)


@pytest.mark.parametrize(
    "lost", ["token_embedder/embedding", "decoder/layers/mlp/wi_0/kernel", "decoder/layers/self_attention/key/kernel"]
)
def test_what_is_no_llama_of_maxtext_is_told(lost, whole, tmp_path):
    arrays = layouts.maxtext(dict(files.Tensors(whole / "llama")), 3, 1)
    del arrays[lost]
    layouts.write_maxtext(tmp_path / "0", arrays)
    with pytest.raises(UserError, match=rf"^{tmp_path}/0: is not MaxText's Llama; has (.*, ){{3}}…$"):
        hf.load(tmp_path / "0")


def test_a_llama_without_a_projection_wants_the_config_json_of_its_twin(whole, tmp_path):
    """Whose embeddings are tied: then it is read."""
    tied = json.loads((whole / "llama" / "config.json").read_text()) | {"tie_word_embeddings": True}
    arrays = layouts.maxtext(dict(files.Tensors(whole / "llama")), 3, 1)
    del arrays["decoder/logits_dense/kernel"]
    layouts.write_maxtext(tmp_path / "0", arrays)
    with pytest.raises(UserError, match=r"/0: decoder/logits_dense/kernel is missing; .*\(tie_word_embeddings: true, "):
        hf.load(tmp_path / "0")
    (tmp_path / "0" / "config.json").write_text(json.dumps(tied))
    network, params = hf.load(tmp_path / "0")
    assert network.config.tie_embeddings
    table = params["model"]["token_embed"]["table"][: SIZES["vocab_size"]]
    np.testing.assert_array_equal(table, arrays["token_embedder/embedding"])


def test_a_llama_3_wants_the_config_json_of_its_twin(whole, tmp_path, monkeypatch):
    """Its vocabulary tells it; a checkpoint does not say how the positions are scaled."""
    monkeypatch.setattr(maxtext, "LLAMA3_VOCABULARY", SIZES["vocab_size"])
    with pytest.raises(UserError, match=r"is a Llama 3, .* add the config\.json of its Hugging Face twin"):
        hf.load(whole / "maxtext")


def test_the_directory_above_the_steps(whole, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    shutil.copytree(whole / "t5x", tmp_path / "run" / "checkpoint_7")
    assert main(["import", str(tmp_path / "run"), str(tmp_path / "out")]) == 2
    assert "has checkpoints of several steps; name one of them, such as checkpoint_7" in capsys.readouterr().err
