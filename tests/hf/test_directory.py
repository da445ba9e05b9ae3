"""Directories in Hugging Face's form: every family's round trip, and what is said of wrong ones. No torch needed."""

import json

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import traverse_util

from jaxpt import hf
from jaxpt.config.plain import leaves
from jaxpt.errors import UserError
from jaxpt.hf import directory, files
from jaxpt.hf.options import from_json
from jaxpt.models import stored
from jaxpt.models.decoder_only import DecoderOnlyConfig
from jaxpt.models.network import Network
from tests.hf.states import to_hf
from tests.models.helpers import ALL, EVERY, whole

V = 203
THEIRS = {name: make for name, make in EVERY.items() if name not in ("t5_lm", "t5_shared")}
AS_READ = {"dtype": "auto"}
"""What a configuration says that was read from a directory: written with it, the same network is not traced twice."""


def fresh(config, seed=0):
    """(network, random parameters) with zeros in the rows that only pad the vocabulary, as an import has them."""
    rng = np.random.default_rng(seed)
    network, flat = config if isinstance(config, Network) else whole(config), {}
    config = network.config
    for path, param in stored.stored_params(network).items():
        unpadded = param.unpadded
        padding = [(0, full - size) for full, size in zip(param.shape, unpadded)]
        flat[path] = np.pad(rng.normal(size=unpadded).astype(np.float32), padding)
    return network, traverse_util.unflatten_dict(flat, sep="/")


def sized(config):
    """The configuration with the sizes of a decoder that follow from others, as config.json has them."""
    if not isinstance(config, DecoderOnlyConfig):
        return config
    sizes = {"kv_heads": config.kv_heads or config.heads, "head_dim": config.width}
    return config.model_copy(update=sizes | {"score_width": config.score_width or config.width})


@pytest.fixture
def bert():
    return fresh(ALL["bert"](**AS_READ))


def test_the_dtype_of_computations_is_not_of_a_directory(tmp_path):
    model, params = fresh(ALL["bert"]())
    assert model.config.dtype == "float32"
    hf.save(tmp_path, model, params)
    assert hf.load(tmp_path)[0].config == ALL["bert"](**AS_READ)


def test_a_directory_that_is_written_anew_is_not_said_to_be_changed(bert, tmp_path):
    hf.save(tmp_path, *bert)
    files.write_checksums(tmp_path)
    hf.save(tmp_path, *bert)
    assert not (tmp_path / files.CHECKSUMS).exists()


@pytest.mark.parametrize("name", THEIRS)
def test_saved_and_loaded(name, tmp_path):
    model, params = fresh(EVERY[name](**AS_READ))
    hf.save(tmp_path, model, params)
    again, loaded = hf.load(tmp_path)
    assert sized(again.config) == sized(model.config) and set(again.heads) == set(model.heads)
    jax.tree.map(np.testing.assert_array_equal, params, loaded)


@pytest.mark.parametrize("name", THEIRS)
def test_config_json_names_the_class_and_every_option(name):
    config = EVERY[name]()
    family = directory.family_of(config)
    keys = directory.to_json(family, whole(config))
    assert keys["model_type"] == family.model_type and keys["architectures"] == [family.class_of(whole(config))]
    read = dict(leaves(family.read(json.loads(json.dumps(keys)))))
    for option in family.options:  # what is not written is what their class would take anyway
        default = option.default if option.values is None else option.values[option.default]
        assert option.theirs in read or getattr(config, option.ours) in (default, None), option


# Keys of published files that are in no class of transformers, or do not change its output: {model_type: keys}
PUBLISHED_KEYS = {
    "phi3": [  # Phi 3, 3.5 and 4 mini
        {"auto_map": {"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3"},
         "embd_pdrop": 0.0, "resid_pdrop": 0.0, "original_max_position_embeddings": 4096, "sliding_window": 2047},
        {"attention_bias": False, "rope_scaling": None, "rope_theta": 10000.0},
        {"attention_bias": False, "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False,
         "partial_rotary_factor": 0.75, "tie_word_embeddings": True},
    ],
    "smollm3": [
        {"layer_types": ["full_attention"] * 36, "max_window_layers": 28, "mlp_bias": False, "pretraining_tp": 2,
         "no_rope_layer_interval": 4, "rope_scaling": None, "rope_theta": 5e6, "sliding_window": None,
         "use_sliding_window": False},
    ],
    "gpt_neox": [{"rotary_emb_base": 10000, "rotary_pct": 0.25, "use_parallel_residual": True, "rope_theta": 10000}],
    "stablelm": [{"auto_map": {"AutoConfig": "configuration_stablelm.StableLmConfig"}, "partial_rotary_factor": 0.25}],
    "falcon": [{"auto_map": {"AutoConfig": "configuration_falcon.FalconConfig"}, "rope_scaling": None}],
    "gemma2": [{"cache_implementation": "hybrid", "sliding_window": 4096, "sliding_window_size": 4096}],
    "gemma3_text": [{"_sliding_window_pattern": 6, "rope_local_base_freq": 10000.0, "rope_scaling": None,
                     "rope_theta": 1e6, "cache_implementation": "hybrid"}],
    "olmo3": [{"rope_theta": 500000, "rope_scaling": {
        "attention_factor": 1.2, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0, "rope_type": "yarn",
        "original_max_position_embeddings": 8192}}],
    "t5": [{"dense_act_fn": "gelu_new", "feed_forward_proj": "gated-gelu", "is_gated_act": True, "n_positions": 512}],
    "umt5": [{"dense_act_fn": "gelu_new", "feed_forward_proj": "gated-gelu", "is_gated_act": True,
              "scalable_attention": True, "tie_word_embeddings": False}],
    "switch_transformers": [
        {"batch_prioritized_routing": False, "dense_act_fn": "relu", "feed_forward_proj": "relu", "is_gated_act": False,
         "num_sparse_encoder_layers": 6, "num_sparse_decoder_layers": 6, "num_selected_experts": 1,
         "router_dtype": "float32", "router_type": "tokens_masked", "normalize_router_prob_before_dropping": False},
    ],
}  # fmt: skip


@pytest.mark.parametrize("model_type", PUBLISHED_KEYS)
def test_keys_of_published_files_are_known(model_type):
    for keys in PUBLISHED_KEYS[model_type]:
        from_json(directory.families()[model_type], {"model_type": model_type, **keys}, {})


def test_files_are_cut_and_indexed(bert, tmp_path):
    model, params = bert
    hf.save(tmp_path, model, params, shard_bytes=10_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    names = sorted({*index["weight_map"].values()})
    assert len(names) > 3 and names[0] == f"model-00001-of-{len(names):05}.safetensors"
    assert all((tmp_path / name).stat().st_size < 30_000 for name in names)
    jax.tree.map(np.testing.assert_array_equal, params, hf.load(tmp_path)[1])
    (tmp_path / names[1]).unlink()
    with pytest.raises(UserError, match=f"{names[1]} is missing, but model.safetensors.index.json lists it"):
        hf.load(tmp_path)


def test_the_safetensors_package_reads_what_is_written(bert, tmp_path):
    from safetensors.numpy import load_file

    hf.save(tmp_path, *bert)
    theirs = load_file(tmp_path / "model.safetensors")
    network, params = bert
    ours = to_hf(params, directory.family_of(network.config).table_of(network), network, tied=False)
    assert set(theirs) == set(ours)
    for name, x in theirs.items():
        np.testing.assert_array_equal(x, ours[name])
    assert len(files.Tensors(tmp_path)) == len(theirs)


def test_experts_in_one_tensor_are_those_of_their_own(tmp_path):
    """As Mixtral's class in transformers 5 has them: gate over up, of all experts of a layer."""
    sizes = {"vocab_size": V, "layers": 2, "embed_dim": 24, "heads": 3, "head_dim": 8, "mlp_dim": 10}
    experts = {"experts": 3, "experts_per_token": 2, "router_normalized": True}
    network, params = fresh(DecoderOnlyConfig(**sizes, **experts, **AS_READ))
    hf.save(tmp_path, network, params)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "mixtral"
    before = {name.replace("block_sparse_moe", "mlp"): x for name, x in files.Tensors(tmp_path).items()}
    gates = [name for name in before if name.endswith(".experts.0.w1.weight")]
    fused = {name: x for name, x in before.items() if ".experts." not in name}
    for prefix in (name.removesuffix(".0.w1.weight") for name in gates):
        w1, w2, w3 = (np.stack([before[f"{prefix}.{e}.w{i}.weight"] for e in range(3)]) for i in (1, 2, 3))
        fused |= {f"{prefix}.gate_up_proj": np.concatenate([w1, w3], axis=1), f"{prefix}.down_proj": w2}
    assert len(gates) == 2 and len(before) - len(fused) == 2 * (3 * 3 - 2)
    files.write(tmp_path, {name: (x.shape, x.dtype) for name, x in fused.items()}, fused.items())
    tensors = directory.open_directory(tmp_path).tensors
    assert len(tensors) == len(before) and set(tensors) == set(before)
    for name, x in tensors.items():
        np.testing.assert_array_equal(x, before[name], err_msg=name)
    jax.tree.map(np.testing.assert_array_equal, params, hf.load(tmp_path)[1])


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_the_dtype_is_kept(bert, tmp_path, dtype):
    model, params = bert
    hf.save(tmp_path, model, params, dtype=dtype)
    _, low = hf.load(tmp_path)
    assert {x.dtype for x in jax.tree.leaves(low)} == {np.dtype(dtype)}
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a.astype(dtype), b), params, low)
    _, full = hf.load(tmp_path, dtype=np.float32)
    assert {x.dtype for x in jax.tree.leaves(full)} == {np.dtype(np.float32)}


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_pickles_are_read(bert, tmp_path, dtype):
    torch = pytest.importorskip("torch")
    model, params = bert
    hf.save(tmp_path, model, params, dtype=dtype)
    _, want = hf.load(tmp_path)
    state = {
        name: torch.from_numpy(np.array(x, np.float32)).to(getattr(torch, dtype))
        for name, x in files.Tensors(tmp_path).items()
    }
    (tmp_path / "model.safetensors").unlink()
    torch.save(state, tmp_path / "pytorch_model.bin")
    jax.tree.map(np.testing.assert_array_equal, want, (single := hf.load(tmp_path)[1]))
    assert {x.dtype for x in jax.tree.leaves(single)} == {np.dtype(dtype)}

    (tmp_path / "pytorch_model.bin").unlink()
    names, places = list(state), {}
    for i, part in enumerate((names[::2], names[1::2]), start=1):
        places |= dict.fromkeys(part, file := f"pytorch_model-0000{i}-of-00002.bin")
        torch.save({name: state[name] for name in part}, tmp_path / file)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    jax.tree.map(np.testing.assert_array_equal, want, hf.load(tmp_path)[1])
    (tmp_path / "pytorch_model-00001-of-00002.bin").write_bytes(b"not a pickle")
    with pytest.raises(UserError, match=r"pytorch_model-00001-of-00002\.bin: not a valid file of torch"):
        hf.load(tmp_path)


def edit(path, **changes):
    keys = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps({k: v for k, v in keys.items() if v != "absent"}))


def test_options_that_are_not_had_are_named(bert, tmp_path):
    hf.save(tmp_path, *bert)
    for change, message in (
        ({"model_type": "rwkv"}, r"model_type 'rwkv' is not supported, only albert, "),
        (
            {"position_embedding_type": "relative_key"},
            r"position_embedding_type: 'relative_key' is not supported, only ",
        ),
        ({"is_decoder": True}, r"is_decoder: true is not supported, only false"),
        ({"hidden_act": "mish"}, r"hidden_act: 'mish' is not supported, only \"gelu\" or "),
        ({"hiden_act": "relu"}, r"hiden_act: 'relu' is unknown for model_type bert \(did you mean hidden_act\?\)"),
        ({"is_encoder_decoder": True}, r"is_encoder_decoder: true is not supported, only false"),
        ({"pruned_heads": {"0": [1]}}, r"pruned_heads\.0: \[1\] is unknown for model_type bert"),
        ({"num_attention_heads": 5}, r"num_attention_heads: 5 does not divide hidden_size 24"),
    ):
        hf.save(tmp_path, *bert)
        edit(tmp_path, **change)
        with pytest.raises(UserError, match=message):
            hf.load(tmp_path)
    hf.save(tmp_path, *bert)
    edit(tmp_path, flavour="vanilla", model_type="bert")
    hf.load(tmp_path, ignore=["flavour"])


def test_what_is_missing_is_drawn_when_told_so(bert, tmp_path):
    model, params = bert
    hf.save(tmp_path, model, params)
    edit(tmp_path, intermediate_size=48)
    with pytest.raises(UserError, match=r"weights: bert\.encoder\.layer\.0\.intermediate\.dense\.bias has shape"):
        hf.load(tmp_path)
    wider, taken = hf.load(tmp_path, partial=True)
    assert jax.tree.map(np.shape, taken) == jax.tree.map(lambda x: x.shape, wider.shapes())
    np.testing.assert_array_equal(taken["model"]["token_embed"]["table"], params["model"]["token_embed"]["table"])


def test_a_body_without_heads_and_old_spellings(bert, tmp_path):
    """`BertModel` leaves the prefix out; files of 2018 say gamma and beta."""
    model, params = bert
    hf.save(tmp_path, model, params)
    tensors = dict(files.Tensors(tmp_path))
    body = {name.removeprefix("bert."): x for name, x in tensors.items() if name.startswith("bert.")}
    body["embeddings.LayerNorm.gamma"] = body.pop("embeddings.LayerNorm.weight")
    files.write(tmp_path, {name: (x.shape, x.dtype) for name, x in body.items()}, body.items())
    network, taken = hf.load(tmp_path)
    assert set(network.heads) == set(taken["heads"]) == {"pooler"}
    jax.tree.map(np.testing.assert_array_equal, params["model"], taken["model"])
    with pytest.raises(UserError, match=r"weights: cls\.predictions\..* are missing"):
        directory.open_directory(tmp_path, heads=("masked_lm",))


def test_heads_without_a_class_are_an_error(bert, tmp_path):
    network, params = bert
    odd = Network(network.model, {"sentence_pair": network.heads["sentence_pair"]})
    with pytest.raises(UserError, match=r"no bert with the heads sentence_pair, only with: masked_lm \+ pooler"):
        hf.save(tmp_path, odd, {"model": params["model"], "heads": {"sentence_pair": params["heads"]["sentence_pair"]}})


def test_a_tied_tensor_may_stand_under_either_name(bert, tmp_path):
    model, params = bert
    hf.save(tmp_path, model, params)
    tensors = dict(files.Tensors(tmp_path))
    tensors["cls.predictions.decoder.weight"] = tensors.pop("bert.embeddings.word_embeddings.weight")
    files.write(tmp_path, {name: (x.shape, x.dtype) for name, x in tensors.items()}, tensors.items())
    jax.tree.map(np.testing.assert_array_equal, params, hf.load(tmp_path)[1])


def test_no_directory_no_weights_and_damaged_files(bert, tmp_path):
    with pytest.raises(UserError, match=r"no config\.json; expected"):
        hf.load(tmp_path)
    hf.save(tmp_path, *bert)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-10])
    with pytest.raises(UserError, match=r"model\.safetensors: not a valid safetensors file"):
        hf.load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"contains no weights; expected model\.safetensors, pytorch_model\.bin"):
        hf.load(tmp_path)


QUERY = "bert.encoder.layer.0.attention.self.query"


def rewrite(directory, change, data=b""):
    """Passes the header of a directory's file through `change`, and appends to its data."""
    path = directory / "model.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :] + data)


@pytest.mark.parametrize("offsets", [(-48, 0), (-48, -48), (0, -40), (10**9, 0), (0, 8)])
def test_offsets_that_overlap_or_lie_outside_are_refused(bert, tmp_path, offsets):
    hf.save(tmp_path, *bert)

    def move(header):
        place = header[f"{QUERY}.bias"]["data_offsets"]
        header[f"{QUERY}.bias"]["data_offsets"] = [a + b for a, b in zip(place, offsets)]

    rewrite(tmp_path, move)
    with pytest.raises(UserError, match=r"model\.safetensors: not a valid safetensors file: .*offset"):
        hf.load(tmp_path)
    hf.save(tmp_path, *bert)
    rewrite(tmp_path, lambda header: header[f"{QUERY}.bias"].update(data_offsets=[-96, 0]))
    with pytest.raises(UserError, match=r"not a valid safetensors file: .*integer `-96`"):
        hf.load(tmp_path)
    hf.save(tmp_path, *bert)
    rewrite(tmp_path, lambda header: None, data=b"behind the end")
    with pytest.raises(UserError, match=r"not a valid safetensors file"):
        hf.load(tmp_path)


def put(directory, tensors):
    """Sets tensors of a directory with the safetensors package itself."""
    from safetensors.numpy import load_file, save_file

    path = directory / "model.safetensors"
    save_file(load_file(path) | tensors, path, {"format": "pt"})


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "complex64"])
def test_weights_of_other_types_are_named_and_buffers_passed_over(bert, tmp_path, dtype):
    model, params = bert
    hf.save(tmp_path, model, params)
    put(tmp_path, {"bert.embeddings.position_ids": np.arange(32)[None]})
    jax.tree.map(np.testing.assert_array_equal, params, hf.load(tmp_path)[1])
    shape = files.Tensors(tmp_path).shapes[f"{QUERY}.weight"]
    put(tmp_path, {f"{QUERY}.weight": np.ones(shape, dtype)})
    for partial in (False, True):
        with pytest.raises(UserError, match=rf"{QUERY}\.weight has type \w+, supported types are F64, F32, F16, BF16"):
            hf.load(tmp_path, partial=partial)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_tensor_that_is_not_finite_is_named(bert, tmp_path, dtype, value):
    hf.save(tmp_path, *bert, dtype=np.dtype(dtype))
    broken = np.array(files.Tensors(tmp_path)[f"{QUERY}.weight"])
    broken[3, 5] = value
    put(tmp_path, {f"{QUERY}.weight": broken})
    with pytest.raises(UserError, match=rf"{tmp_path}: weights: {QUERY}\.weight is not finite"):
        hf.load(tmp_path, partial=True)


def test_a_tensor_that_is_too_large_for_its_type_is_not_written(bert, tmp_path):
    model, params = bert
    params["model"]["embed_norm"]["scale"][2] = 1e5
    with pytest.raises(UserError, match=r"weights: bert\.embeddings\.LayerNorm\.weight as float16 is not finite"):
        hf.save(tmp_path, model, params, dtype=np.float16)
    hf.save(tmp_path, model, params, dtype="bfloat16")


def test_two_files_with_one_name_are_refused(bert, tmp_path):
    hf.save(tmp_path, *bert, shard_bytes=10_000)
    first, second, *_ = sorted(tmp_path.glob("*.safetensors"))
    second.write_bytes(first.read_bytes())
    with pytest.raises(UserError, match=r"-00002-of-.* contains .*, which another file of .* contains too"):
        hf.load(tmp_path)


def test_a_directory_of_which_nothing_fits_is_refused(bert, tmp_path):
    hf.save(tmp_path, *bert)
    known = {f"encoder.{name}": x for name, x in files.Tensors(tmp_path).items()}
    files.write(tmp_path, {name: (x.shape, x.dtype) for name, x in known.items()}, known.items())
    said = r"no tensor matches a parameter, the whole model would be random: encoder\..* not in a"
    with pytest.raises(UserError, match=said):
        hf.load(tmp_path, partial=True)


def test_tensors_that_must_be_zero(tmp_path):
    model, params = fresh(EVERY["bart"]())
    hf.save(tmp_path, model, params)
    tensors = dict(files.Tensors(tmp_path))
    assert tensors["final_logits_bias"].shape == (1, V)
    tensors["final_logits_bias"] = tensors["final_logits_bias"] + 1
    files.write(tmp_path, {name: (x.shape, x.dtype) for name, x in tensors.items()}, tensors.items())
    with pytest.raises(UserError, match=r"final_logits_bias is not zero"):
        hf.load(tmp_path)


def test_saving_another_tree_is_an_error(bert, tmp_path):
    model, params = bert
    with pytest.raises(UserError, match=r"no parameter model/token_embed/table"):
        hf.save(tmp_path, model, {**params, "model": {k: v for k, v in params["model"].items() if k != "token_embed"}})


def test_an_architecture_that_is_not_theirs_is_named(tmp_path):
    for name in ("t5_lm", "t5_shared"):
        with pytest.raises(UserError, match=r"model\.kind: t5(_lm)? of this configuration has no counterpart"):
            hf.save(tmp_path, *fresh(EVERY[name]()))
    with pytest.raises(UserError, match=r"model\.kind: t5 of this configuration has no counterpart"):
        hf.save(tmp_path, *fresh(EVERY["t5"](pooling="mean")))
