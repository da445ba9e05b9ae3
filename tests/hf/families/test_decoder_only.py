"""Decoders beside their classes in transformers: outputs, gradients, the way back, and what they generate.

The suite has a case or two of each class; the grid has random configurations of `tests.hf.families.odd`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.hf import directory, imported, load, save, verify
from jaxpt.models.cache import NewCache
from jaxpt.models.decoder_only import DecoderOnlyConfig
from jaxpt.models.stored import stored_params
from tests import grids
from tests.hf import parity
from tests.hf.families import odd
from tests.hf.test_directory import fresh

pytestmark = [pytest.mark.parity, pytest.mark.slow]

FORWARD, GRADIENT = 1e-5, 1e-4
SIZES = {
    "vocab_size": 101, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3,
    "num_key_value_heads": 1, "max_position_embeddings": 64, **odd.SPECIAL,
}  # fmt: skip
FALCON_SIZES = {key: x for key, x in SIZES.items() if key not in ("num_key_value_heads", "intermediate_size")}
NEOX_SIZES = {key: x for key, x in SIZES.items() if key != "num_key_value_heads"}
WINDOWS = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
YARN = {
    "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 8, "beta_fast": 2.0,
}  # fmt: skip
LOCAL = {"rope_type": "default", "rope_theta": 50.0}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 100.0, "partial_rotary_factor": 0.75, "short_factor": [1.0, 1.5, 2.0],
    "long_factor": [1.0, 3.0, 4.0], "original_max_position_embeddings": 8,
}  # fmt: skip
# {name: (prefix of their classes, arguments of their configuration)}
MODELS = {
    "llama, yarn": ("Llama", SIZES | {"rope_parameters": YARN}),
    "mistral, window": ("Mistral", SIZES | {"sliding_window": 3}),
    "qwen2, one layer, tied": ("Qwen2", SIZES | {"num_hidden_layers": 1, "tie_word_embeddings": True}),
    "qwen3, windows, yarn": ("Qwen3", SIZES | {"head_dim": 10, **WINDOWS, "rope_parameters": YARN}),
    "olmo2": ("Olmo2", SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "olmo3, yarn": ("Olmo3", SIZES | {"sliding_window": 3, "num_hidden_layers": 5, "rope_parameters": {
        "full_attention": YARN, "sliding_attention": LOCAL}}),
    "gemma": ("Gemma", SIZES | {"head_dim": 10}),
    "gemma2, caps": ("Gemma2", SIZES | {"head_dim": 10, "sliding_window": 3, "query_pre_attn_scalar": 7,
                                        "attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5}),
    "gemma3, linear": ("Gemma3", SIZES | {"head_dim": 10, "sliding_window": 3, "num_hidden_layers": 7,
        "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
                            "sliding_attention": LOCAL}}),
    "smollm3": ("SmolLM3", SIZES | {"num_hidden_layers": 5, "no_rope_layer_interval": 2}),
    "phi3, longrope, part rotated": ("Phi3", SIZES | {
        "sliding_window": 3, "original_max_position_embeddings": 8, "rope_parameters": LONGROPE}),
    "stablelm, parallel": ("StableLm", SIZES | {"use_qkv_bias": True, "qk_layernorm": True,
                                                "use_parallel_residual": True}),
    "gpt_neox, parallel": ("GPTNeoX", NEOX_SIZES),
    "bloom, three heads": ("Bloom", {"vocab_size": 101, "hidden_size": 24, "n_layer": 2, "n_head": 3, **odd.SPECIAL}),
    "falcon, groups, two norms": ("Falcon", FALCON_SIZES | {
        "num_attention_heads": 6, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon, alibi, biases, in sequence": ("Falcon", FALCON_SIZES | {
        "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}),
    "falcon, one key head": ("Falcon", FALCON_SIZES),
    "xglm": ("XGLM", {"vocab_size": 101, "d_model": 24, "ffn_dim": 40, "num_layers": 2, "attention_heads": 3,
                      "max_position_embeddings": 64, **odd.SPECIAL, "pad_token_id": 1, "bos_token_id": 0}),
}  # fmt: skip


def their_model(prefix, options, head="CausalLM", seed=0):
    transformers = pytest.importorskip("transformers")
    name = f"{prefix}For{head}"
    if head == "SequenceClassification" and prefix == "Gemma3":
        name = "Gemma3TextForSequenceClassification"
    return parity.randomise(getattr(transformers, name)(odd.config(transformers, prefix, **options)), seed)


def check_class(prefix, options, path, seed):
    largest = parity.check(
        lambda: their_model(prefix, options), path, seeds=(seed,), forward=FORWARD, gradient=GRADIENT
    )
    print("\nLARGEST", prefix, max(x for name, x in largest.items() if name != "gradient"), largest["gradient"])


ALIKE = ("mistral, window", "olmo2", "gemma", "falcon, one key head")  # others have their parts as well


@pytest.mark.parametrize("name", grids.cases(MODELS, *(name for name in MODELS if name not in ALIKE)))
def test_equals_their_class(name, tmp_path):
    check_class(*MODELS[name], tmp_path, 0)


@pytest.mark.parametrize("seed", grids.seeds(0, 8))
@pytest.mark.parametrize("prefix", odd.CLASSES)
def test_random_sizes_equal_their_class(prefix, seed, tmp_path):
    check_class(prefix, odd.CLASSES[prefix](np.random.default_rng(seed)), tmp_path, seed)


# ---- generation -----------------------------------------------------------------------------------------------------

NEW, PROMPT = 12, 12


def greedy(network, params, tokens_BxL, segments_BxL):
    """New tokens with a cache, and the logits of each step with it and without: [B, N], [B, N, V] twice."""

    @jax.jit
    def prefill(params):
        bound = network.bind(params)
        output = bound.decode(tokens_BxL, segment_ids=segments_BxL, cache=NewCache(PROMPT + NEW))
        return bound.logits(output.hidden[:, -1]), output.cache

    @jax.jit
    def step(params, token_B, cache):
        bound = network.bind(params)
        output = bound.decode(token_B[:, None], cache=cache)
        return bound.logits(output.hidden[:, -1]), output.cache

    @jax.jit
    def uncached(params, tokens_BxL):
        segments = jnp.pad(segments_BxL, ((0, 0), (0, NEW - 1)), constant_values=1)
        positions = jnp.maximum(segments.cumsum(1) - 1, 0)
        bound = network.bind(params)
        return bound.logits(bound.decode(tokens_BxL, segment_ids=segments, positions=positions).hidden[:, PROMPT - 1 :])

    (logits, cache), new, every = prefill(params), [], []
    for _ in range(NEW):
        every.append(logits)
        new.append(logits.argmax(-1).astype(jnp.int32))
        logits, cache = step(params, new[-1], cache)
    new_BxN = jnp.stack(new, 1)
    return new_BxN, jnp.stack(every, 1), uncached(params, jnp.concatenate([tokens_BxL, new_BxN[:, :-1]], 1))


def check_generation(prefix, options, path, seed):
    """Greedy tokens of two prompts, one of them padded on the left, beyond the windows and the original length.

    Both texts begin longer than the original length: one with longrope that passes it is read again, by the engine.
    """
    import torch

    model = their_model(prefix, options, seed=seed)
    model.save_pretrained(path)
    network, params = load(path)
    segments = np.ones((2, PROMPT), np.int32)
    segments[1, :3] = 0
    tokens = verify.random_tokens(np.random.default_rng(seed), network.config, segments.shape)
    new, cached, uncached = greedy(network, params, jnp.asarray(tokens), jnp.asarray(segments))
    scale = float(np.abs(uncached).max())
    assert float(np.abs(cached - uncached).max()) < FORWARD * scale
    with torch.no_grad():
        theirs = model.generate(
            torch.from_numpy(tokens).long(), attention_mask=torch.from_numpy(segments), max_new_tokens=NEW,
            do_sample=False, eos_token_id=None, pad_token_id=0, logits_processor=[],
        )  # fmt: skip
    np.testing.assert_array_equal(new, theirs[:, PROMPT:].numpy())


GENERATING = (
    "qwen3, windows, yarn", "gemma3, linear", "bloom, three heads", "falcon, alibi, biases, in sequence", "xglm",
)  # fmt: skip


@pytest.mark.parametrize("name", grids.cases(GENERATING, "qwen3, windows, yarn", "falcon, alibi, biases, in sequence"))
def test_generates_as_their_class(name, tmp_path):
    check_generation(*MODELS[name], tmp_path, 0)


@pytest.mark.parametrize("seed", grids.seeds(0, 3))
@pytest.mark.parametrize("prefix", odd.CLASSES)
def test_random_sizes_generate_as_their_class(prefix, seed, tmp_path):
    check_generation(prefix, odd.CLASSES[prefix](np.random.default_rng(100 + seed)), tmp_path, seed)


# ---- models that are made here --------------------------------------------------------------------------------------

OURS = {"vocab_size": 101, "layers": 1, "embed_dim": 24, "heads": 3, "mlp_dim": 40, "max_positions": 32}
DECODERS = [name for name, family in directory.families().items() if "decoder_only" in family.kinds]


@pytest.mark.parametrize("model_type", DECODERS)
def test_a_model_of_our_defaults_equals_its_class(model_type, tmp_path):
    """Sizes that our configuration leaves out are numbers in config.json."""
    family = directory.families()[model_type]
    more = {"experts": 2} if "experts" in {option.ours for option in family.options} else {}
    more |= {"mlp_dim": 96} if model_type == "bloom" else {}
    network, params = fresh(DecoderOnlyConfig(**OURS | more | family.infer({}, {})))
    assert family.supports(network.config)
    parity.save_as(model_type, tmp_path, network, params)
    found = verify.verify(tmp_path)
    assert all(x.relative < FORWARD for x in found.values()), found


@pytest.mark.parametrize("model_type", ["qwen3", "gemma2", "gemma3_text", "olmo3"])
def test_a_pattern_whose_windows_were_taken_off(model_type, tmp_path):
    """All layers have full attention then, under either name."""
    more = directory.families()[model_type].infer({}, {}) | {"pattern": ("other", "main"), "layers": 2}
    network, params = fresh(DecoderOnlyConfig(**OURS | more))
    parity.save_as(model_type, tmp_path, network, params)
    found = verify.verify(tmp_path, network, params)
    assert all(x.relative < FORWARD for x in found.values()), found
    assert load(tmp_path)[0].config.other_window is None


# ---- classes for fine-tuning ----------------------------------------------------------------------------------------

LABELS = {"SequenceClassification": 3, "TokenClassification": 5}


def has_class(prefix, head):
    transformers = pytest.importorskip("transformers")
    return hasattr(transformers, f"{prefix}For{head}")


def check_head(prefix, options, head, path, seed):
    import torch

    model = their_model(prefix, options | {"num_labels": LABELS[head]}, head, seed)
    model.save_pretrained(path)
    opened = directory.open_directory(path)
    network, params = load(path)
    assert opened.family.class_of(network) == type(model).__name__
    inputs = verify.task_batch(network.config, seed=seed)
    name = {"SequenceClassification": "classes", "TokenClassification": "tags"}[head]
    mine = jax.jit(functools.partial(verify.task_ours, network))(params, inputs)
    with torch.no_grad():
        theirs = verify.task_theirs(name, parity.with_ids_of(model, inputs), inputs)
    difference = verify.differences(mine, theirs, inputs)["logits"]
    assert difference.relative < FORWARD, difference
    parity.save_as(model.config.model_type, path / "ours", network, params)
    again = type(model).from_pretrained(path / "ours").state_dict()
    assert all(tensor.equal(again[key]) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize(("name", "head"), [
    ("stablelm, parallel", "TokenClassification"), ("gpt_neox, parallel", "SequenceClassification"),
    ("gemma3, linear", "SequenceClassification"), ("falcon, groups, two norms", "TokenClassification"),
])  # fmt: skip
def test_heads_equal_their_class(name, head, tmp_path):
    check_head(*MODELS[name], head, tmp_path, 0)


@pytest.mark.parametrize("seed", grids.seeds(0, 1))
@pytest.mark.parametrize("head", LABELS)
@pytest.mark.parametrize("prefix", odd.CLASSES)
def test_random_sizes_of_heads_equal_their_class(prefix, head, seed, tmp_path):
    if not has_class(prefix, head):
        pytest.skip("transformers has no such class")
    check_head(prefix, odd.CLASSES[prefix](np.random.default_rng(200 + seed)), head, tmp_path, seed)


# ---- a model that reads images --------------------------------------------------------------------------------------


def test_the_text_model_of_gemma3(tmp_path):
    """Of a model of texts and images, the text model is read; its logits are those without an image."""
    import torch

    transformers = pytest.importorskip("transformers")
    text = odd.config(transformers, "Gemma3", **MODELS["gemma3, linear"][1])
    vision = {
        "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 28,
        "patch_size": 14,
    }  # fmt: skip
    config = transformers.Gemma3Config(text_config=text.to_dict(), vision_config=vision, mm_tokens_per_image=1)
    model = parity.randomise(transformers.Gemma3ForConditionalGeneration(config), 0)
    model.save_pretrained(tmp_path / "theirs")
    assert verify.verify(tmp_path / "theirs")["logits"].relative < FORWARD
    opened = directory.open_directory(tmp_path / "theirs")
    lines = [*imported.report_lines(tmp_path / "theirs", opened, {})]
    images = sum("vision" in name or "projector" in name for name in model.state_dict())
    assert f"skipped, not of the text model: {images} tensors that read images" in lines
    network, params = load(tmp_path / "theirs")
    inputs = verify.batch(network.config)
    mine = jax.jit(functools.partial(verify.ours, network))(params, inputs)
    with torch.no_grad():
        theirs = verify.theirs(model, inputs)
    assert all(x.relative < FORWARD for x in verify.differences(mine, theirs, inputs).values())
    save(tmp_path / "ours", network, params)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert type(again).__name__ == "Gemma3ForCausalLM"
    state = model.state_dict()
    names = {name: name.replace("model.", "model.language_model.", 1) for name in again.state_dict()}
    assert all(x.equal(state[names[name]]) for name, x in again.state_dict().items() if names[name] in state)
    assert len(stored_params(network)) > 10
