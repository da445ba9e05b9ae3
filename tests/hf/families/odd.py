"""Random configurations of transformers' decoders, of odd sizes."""

import functools

SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ORIGINAL = 8
"""Length of the original training, where positions are scaled: shorter than the texts."""


def one_of(rng, *values):
    return values[rng.integers(len(values))]


def rope(rng, rotated, *kinds, theta=None):
    """`rope_parameters` of one of the kinds."""
    kind = one_of(rng, *kinds)
    out = {"rope_type": kind, "rope_theta": theta or one_of(rng, 50.0, 1000.0, 10_000.0)}
    if kind != "default":
        out["factor"] = one_of(rng, 2.0, 4.0, 8.0)
    if kind in ("llama3", "yarn", "longrope"):
        out["original_max_position_embeddings"] = ORIGINAL
    if kind == "llama3":
        out |= {"low_freq_factor": 1.0, "high_freq_factor": one_of(rng, 2.0, 4.0)}
    if kind == "yarn":
        out |= one_of(rng, {}, {"beta_fast": 2.0, "beta_slow": 0.5}, {"attention_factor": 1.3}, {"truncate": False},
                      {"mscale": 1.0, "mscale_all_dim": 0.7})  # fmt: skip
    if kind == "longrope":
        out |= {f"{name}_factor": rng.uniform(1, 4, rotated // 2).round(2).tolist() for name in ("short", "long")}
    return out


EVERY_KIND = ("default", "linear", "llama3", "yarn", "longrope")


def sizes(rng, has_head_dim, has_groups=True):
    """Sizes in Llama's names, and the width of a head."""
    heads = one_of(rng, 1, 2, 3, 5, 6)
    groups = one_of(rng, *(n for n in range(1, heads + 1) if heads % n == 0))
    width = one_of(rng, 4, 6, 10)
    out = {
        "vocab_size": one_of(rng, 53, 101, 131), "intermediate_size": one_of(rng, 7, 20, 33),
        "num_hidden_layers": one_of(rng, 1, 2, 3, 5), "num_attention_heads": heads, "max_position_embeddings": 64,
        "hidden_size": one_of(rng, 10, 24, 30) if has_head_dim else heads * width,
        "tie_word_embeddings": bool(rng.integers(2)), **SPECIAL,
    }  # fmt: skip
    if has_head_dim:
        out["hidden_size"] += -out["hidden_size"] % heads  # some classes want a multiple
    out |= {"num_key_value_heads": groups} if has_groups else {}
    return out | ({"head_dim": width} if has_head_dim else {}), width


def llama(rng):
    out, width = sizes(rng, True)
    biases = {"attention_bias": bool(rng.integers(2)), "mlp_bias": bool(rng.integers(2))}
    return out | biases | {"rope_parameters": rope(rng, width, *EVERY_KIND)}


def mistral(rng):
    out, width = sizes(rng, True)
    return out | {"sliding_window": one_of(rng, None, 3, 5), "rope_parameters": rope(rng, width, *EVERY_KIND)}


def qwen(rng, has_head_dim):
    out, width = sizes(rng, has_head_dim)
    window = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": int(rng.integers(3))}
    more = {"attention_bias": bool(rng.integers(2))} if has_head_dim else {}
    return out | more | one_of(rng, {}, window) | {"rope_parameters": rope(rng, width, *EVERY_KIND)}


def olmo2(rng):
    out, width = sizes(rng, False)
    return out | {"rope_parameters": rope(rng, width, *EVERY_KIND), "attention_bias": bool(rng.integers(2))}


def by_kind(rng, width, *kinds):
    return {
        "full_attention": rope(rng, width, *kinds),
        "sliding_attention": {"rope_type": "default", "rope_theta": one_of(rng, 20.0, 500.0)},
    }  # fmt: skip


def olmo3(rng):
    out, width = sizes(rng, False)
    nested = by_kind(rng, width, "default", "linear", "yarn")
    nested["full_attention"].pop("truncate", None)
    return out | {"sliding_window": one_of(rng, 2, 3, 6), "rope_parameters": nested}


def gemma(rng):
    return sizes(rng, True)[0]


def gemma2(rng):
    caps = {"attn_logit_softcapping": one_of(rng, None, 2.0), "final_logit_softcapping": one_of(rng, None, 1.5)}
    out, width = sizes(rng, True)
    more = {"sliding_window": one_of(rng, 2, 3, 6), "query_pre_attn_scalar": one_of(rng, 7, width)}
    return out | caps | more


def gemma3(rng):
    out, width = sizes(rng, True)
    more = {"sliding_window": one_of(rng, 2, 3, 6), "query_pre_attn_scalar": one_of(rng, 7, width)}
    kinds = [one_of(rng, "sliding_attention", "full_attention") for _ in range(out["num_hidden_layers"])]
    kinds[-1] = "full_attention"
    nested = by_kind(rng, width, "default", "linear")
    return out | more | {"layer_types": one_of(rng, None, kinds), "rope_parameters": nested}


def smollm3(rng):
    out, width = sizes(rng, False)
    rotated = [int(x) for x in rng.integers(2, size=out["num_hidden_layers"])]
    return out | one_of(rng, {"no_rope_layer_interval": 2}, {"no_rope_layers": rotated}) | {
        "attention_bias": bool(rng.integers(2)), "rope_parameters": rope(rng, width, "default", "linear", "yarn")
    }  # fmt: skip


def phi3(rng):
    out, _ = sizes(rng, False)
    out["hidden_size"] = 8 * out["num_attention_heads"]
    share = one_of(rng, 0.5, 0.75, 1.0)
    scaling = rope(rng, int(8 * share), "default", "longrope") | {"partial_rotary_factor": share}
    scaling.pop("factor", None)
    window = {"sliding_window": one_of(rng, None, 3)}
    return out | window | {"original_max_position_embeddings": ORIGINAL, "rope_parameters": scaling}


def stablelm(rng):
    out, _ = sizes(rng, False)
    out["hidden_size"] = 8 * out["num_attention_heads"]
    switches = {name: bool(rng.integers(2)) for name in ("use_qkv_bias", "qk_layernorm", "use_parallel_residual")}
    return out | switches | {"partial_rotary_factor": one_of(rng, 0.25, 0.5, 1.0)}


def gpt_neox(rng):
    out, _ = sizes(rng, False, has_groups=False)
    out["hidden_size"] = 8 * out["num_attention_heads"]
    switches = {name: bool(rng.integers(2)) for name in ("attention_bias", "use_parallel_residual")}
    return out | switches | {"rotary_pct": one_of(rng, 0.25, 0.5, 1.0), "rotary_emb_base": one_of(rng, 50, 10_000)}


def bloom(rng):
    heads = one_of(rng, 1, 2, 3, 5, 6, 7)
    return {
        "vocab_size": 101, "hidden_size": heads * one_of(rng, 3, 5, 8), "n_layer": one_of(rng, 1, 2, 3),
        "n_head": heads, "tie_word_embeddings": bool(rng.integers(2)), **SPECIAL,
    }  # fmt: skip


def falcon(rng):
    out, width = sizes(rng, False, has_groups=False)
    heads = out["num_attention_heads"]
    groups = one_of(rng, *(n for n in range(1, heads + 1) if heads % n == 0))
    new = {"new_decoder_architecture": True, "num_kv_heads": groups, "num_ln_in_parallel_attn": one_of(rng, None, 1, 2)}
    old = {"multi_query": bool(rng.integers(2)), "parallel_attn": bool(rng.integers(2))}
    ffn = {"ffn_hidden_size": out.pop("intermediate_size")}
    more = {
        "bias": bool(rng.integers(2)),
        "alibi": bool(rng.integers(2)),
        "rope_parameters": rope(rng, width, "default"),
    }
    return out | one_of(rng, new, old) | one_of(rng, ffn, {}) | more


def xglm(rng):
    heads = one_of(rng, 1, 2, 3, 5)
    return {
        "vocab_size": 101, "d_model": heads * one_of(rng, 4, 6), "ffn_dim": one_of(rng, 7, 20),
        "num_layers": one_of(rng, 1, 2, 3), "attention_heads": heads, "max_position_embeddings": 64,
        "scale_embedding": bool(rng.integers(2)), "tie_word_embeddings": bool(rng.integers(2)), **SPECIAL,
        "pad_token_id": 1, "bos_token_id": 0, "activation_function": one_of(rng, "gelu", "relu"),
    }  # fmt: skip


CLASSES = {
    "Llama": llama, "Mistral": mistral, "Qwen2": functools.partial(qwen, has_head_dim=False),
    "Qwen3": functools.partial(qwen, has_head_dim=True), "Olmo2": olmo2, "Olmo3": olmo3, "Gemma": gemma,
    "Gemma2": gemma2, "Gemma3": gemma3, "SmolLM3": smollm3, "Phi3": phi3, "StableLm": stablelm, "GPTNeoX": gpt_neox,
    "Bloom": bloom, "Falcon": falcon, "XGLM": xglm,
}  # fmt: skip
"""{prefix of their classes: makes the arguments of their configuration}"""


def config(transformers, prefix, **options):
    """Their configuration."""
    return getattr(transformers, f"{prefix}TextConfig" if prefix == "Gemma3" else f"{prefix}Config")(**options)
