"""Decoders beside their classes in transformers: outputs, gradients and the way back, of odd sizes."""

import pytest

from tests.hf import parity

SIZES = {
    "vocab_size": 101, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
WINDOWS = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
YARN = {
    "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 8, "beta_fast": 2.0,
}  # fmt: skip
MODELS = {
    "qwen3": ("Qwen3", {"head_dim": 10}),
    "qwen3, windows, yarn": ("Qwen3", {"head_dim": 10, **WINDOWS, "rope_parameters": YARN}),
    "olmo2": ("Olmo2", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "qwen2, one layer, tied": ("Qwen2", {"num_hidden_layers": 1, "head_dim": 8, "tie_word_embeddings": True}),
    "gemma2": ("Gemma2", {"head_dim": 10, "sliding_window": 3, "query_pre_attn_scalar": 7,
                          "attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5}),
    "gemma": ("Gemma", {"head_dim": 10}),
    "gemma3": ("Gemma3", {"head_dim": 10, "sliding_window": 3, "num_hidden_layers": 7, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}}),
    "olmo3, yarn": ("Olmo3", {"sliding_window": 3, "num_hidden_layers": 5, "rope_parameters": {
        "full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}}),
    "phi3, longrope, part rotated": ("Phi3", {
        "num_attention_heads": 3, "hidden_size": 24, "max_position_embeddings": 16, "sliding_window": 3,
        "original_max_position_embeddings": 4, "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 100.0, "partial_rotary_factor": 0.75,
            "short_factor": [1.0, 1.5, 2.0],
            "long_factor": [1.0, 3.0, 4.0], "original_max_position_embeddings": 4}}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5, "no_rope_layer_interval": 2}),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_equals_their_class(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    prefix, more = MODELS[name]
    if name.startswith("qwen2"):
        more = {key: value for key, value in more.items() if key != "head_dim"}
    config = getattr(transformers, f"{prefix}TextConfig" if prefix == "Gemma3" else f"{prefix}Config")(**SIZES | more)
    parity.check(lambda: getattr(transformers, f"{prefix}ForCausalLM")(config), tmp_path, seeds=(0,))
