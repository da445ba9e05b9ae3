"""XLNet as Hugging Face's `XLNetLMHeadModel`, with projections [D, heads, head width]."""

from __future__ import annotations

from jaxpt.hf.options import ACTIVATIONS, Family, Option
from jaxpt.hf.table import Row, Table, layer
from jaxpt.hf.tasks import Task, tasks
from jaxpt.models.xlnet import XLNetConfig

BLOCK = {
    "attention_norm": "rel_attn.layer_norm", "feed_forward/up": "ff.layer_1", "feed_forward/down": "ff.layer_2",
    "feed_forward_norm": "ff.layer_norm",
}  # fmt: skip
OURS, THEIRS = "encoder/segment_0/block_0", "transformer.layer.{layer}"


def table(config: XLNetConfig) -> Table:
    """Weight table of XLNet."""
    attention, theirs = f"{OURS}/attention", f"{THEIRS}.rel_attn"
    heads = (config.heads, config.width)
    projections = {"query": "q", "key": "k", "value": "v", "position": "r"}
    biases = {"content_bias": "r_w_bias", "position_bias": "r_r_bias", "type_bias": "r_s_bias"}
    shape = (config.embed_dim, *heads)
    return Table(
        rows=(
            Row("token_embed/table", "transformer.word_embedding.weight", tied=("lm_loss.weight",)),
            Row("query_embed", "transformer.mask_emb", shape=(1, 1, config.embed_dim)),
            *(Row(f"{attention}/{our}/kernel", f"{theirs}.{name}", shape=shape) for our, name in projections.items()),
            Row(f"{attention}/output/kernel", f"{theirs}.o", "transpose", shape=shape),
            *(Row(f"{attention}/{our}", f"{theirs}.{name}") for our, name in biases.items()),
            Row(f"{attention}/types", f"{theirs}.seg_embed", shape=(2, *heads)),
            *layer(OURS, THEIRS, BLOCK),
            Row("vocab_bias", "lm_loss.bias"),
        ),
        prefix="transformer.",
    )


POOLED = ("sequence_summary.summary", "logits_proj")
SUMMARY = {"summary_type": "last", "summary_use_proj": True, "summary_activation": "tanh"}
FAMILIES = (
    Family(
        model_type="xlnet",
        kind="xlnet",
        classes="XLNetLMHeadModel",
        table=table,
        tasks=tasks("XLNet", classes=POOLED, choice=POOLED, fixed=SUMMARY)
        | {"span": Task("XLNetForQuestionAnsweringSimple", "qa_outputs")},
        options=(
            Option("vocab_size", "vocab_size", 32000),
            Option("d_model", "embed_dim", 1024),
            Option("n_layer", "layers", 24),
            Option("n_head", "heads", 16),
            Option("d_head", "head_dim", None),
            Option("d_inner", "mlp_dim", 4096),
            Option("ff_activation", "activation", "gelu", ACTIVATIONS),
            Option("layer_norm_eps", "epsilon", 1e-12),
            Option("clamp_len", "clamp", None),
            Option("mem_len", "memory_length", 512),
            Option("reuse_len", "reuse_length", None),
            Option("dropout", "dropout", 0.1),
        ),
        fixed={
            "attn_type": "bi", "bi_data": False, "same_length": False, "untie_r": True, "tie_word_embeddings": True,
        },
        harmless=(
            "use_mems_eval", "use_mems_train", "use_mems", "summary_type", "summary_use_proj", "summary_activation",
            "start_n_top", "end_n_top", "n_token", "init", "init_range", "init_std",
            "max_position_embeddings",
        ),
        read=lambda keys: keys | {name: value if (value := keys.get(name, default) or -1) > 0 else None
                                  for name, default in (("clamp_len", -1), ("mem_len", 512), ("reuse_len", -1))},
        write=lambda keys, config: keys | {"clamp_len": config.clamp or -1, "d_head": config.width},
    ),
)  # fmt: skip
