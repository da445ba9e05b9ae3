"""Llama in MaxText's checkpoints: Orbax, with the parameters under params/params.

    checkpoints/0/items/_METADATA     or the directory of `_METADATA` itself

Layers are stacked along the second axis (`decoder/layers/…`, scan_layers) or have an array each (`decoder/layers_3/…`).
MaxText divides queries by the root of their width when it stores them, and keeps the pairs of rotary positions side by
side where it scales them as Llama 3.1; neither that nor the base of the positions is in a checkpoint. A config.json of
the Hugging Face twin beside the arrays says them; without one they are MaxText's defaults. Read with
src/maxtext/checkpoint_conversion, layers/embeddings.py and layers/attentions.py at e591f30.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxpt import errors
from jaxpt.errors import UserError, shown
from jaxpt.hf.files import read_object
from jaxpt.hf.formats import stores
from jaxpt.hf.formats.arrays import Array, Checkpoint, Tensors, check_whole, layers

ITEMS, PREFIX = "items", ("params", "params")
LLAMA3_VOCABULARY = 128_256
DEFAULTS = {"rope_theta": 10_000.0, "rms_norm_eps": 1e-5}
"""MaxText's, in configs/base.yml, and those of Llama 2."""
_MATRICES = {"query": "q", "key": "k", "value": "v", "out": "o"}
_MLP = {"wi_0": "gate", "wi_1": "up", "wo": "down"}
_NORMS = {"pre_self_attention": "input", "post_self_attention": "post_attention"}


def reads(path: Path) -> bool:
    """True for a directory of one step."""
    folder = _folder(path)
    return folder is not None and stores.has_paths(folder, *PREFIX, "decoder")


def open(path: Path) -> Checkpoint:
    """Opens a directory of one step.

    Raises:
      UserError: it is half-written or damaged, an array is missing, the model is no Llama, or what its positions are is
        not known.
    """
    check_whole(path)
    folder = _folder(path)
    assert folder is not None
    arrays = stores.orbax(folder, PREFIX)
    if (path / "config.json").is_file():
        keys = read_object(path / "config.json")
        if keys.get("model_type") != "llama":
            raise UserError(
                f"{path / 'config.json'}: model_type {shown(keys.get('model_type'))}: of MaxText only llama is read"
            )
    else:
        keys = _keys(path, arrays)
    rope = keys.get("rope_parameters") or keys.get("rope_scaling") or {}
    is_paired = isinstance(rope, Mapping) and "llama3" in (rope.get("rope_type"), rope.get("type"))
    return Checkpoint(Tensors(dict(_renamed(arrays, is_paired))), keys)


def _folder(path: Path) -> Path | None:
    return next((x for x in (path, path / ITEMS) if (x / stores.METADATA).is_file()), None)


def _renamed(arrays: Mapping[str, Array], is_paired: bool) -> Iterator[tuple[str, Array]]:
    """(Hugging Face's name, array); a name that is not Llama's stays."""
    whole = {
        "token_embedder/embedding": "model.embed_tokens.weight", "decoder/decoder_norm/scale": "model.norm.weight",
        "decoder/logits_dense/kernel": "lm_head.weight",
    }  # fmt: skip
    left = set(arrays)
    for path, index, part, x in layers(arrays, r"decoder/layers_(\d+)", "decoder/layers"):
        if renamed := _of_layer(part, x, is_paired):
            left.discard(path)
            yield f"model.layers.{index}.{renamed[0]}", renamed[1]
    for path in left:
        yield whole.get(path, path), arrays[path].transposed() if path.endswith("/kernel") else arrays[path]


def _of_layer(part: str, x: Array, is_paired: bool) -> tuple[str, Array] | None:
    """(Hugging Face's name in the layer, array), of a path in the layer; None for another model's."""
    match part.split("/"):
        case ["self_attention", "out", "kernel"] if len(x.shape) == 3:  # head, width, embedding
            heads, width, out = x.shape
            return "self_attn.o_proj.weight", x.reshaped(heads * width, out).transposed()
        case ["self_attention", name, "kernel"] if name in _MATRICES and len(x.shape) == 3:  # embedding, head, width
            embedding, heads, width = x.shape
            if is_paired and name in ("query", "key"):
                x = x.then(x.shape, _halves)
            if name == "query":
                x = x.then(x.shape, lambda query: _times(query, width**0.5))
            return f"self_attn.{_MATRICES[name]}_proj.weight", x.reshaped(embedding, heads * width).transposed()
        case ["mlp", name, "kernel"] if name in _MLP:
            return f"mlp.{_MLP[name]}_proj.weight", x.transposed()
        case [name, "scale"] if (norm := name.removesuffix("_layer_norm")) in _NORMS:
            return f"{_NORMS[norm]}_layernorm.weight", x
    return None


def _halves(x: Any) -> np.ndarray:
    """From rotary pairs side by side to the first of all pairs, then the second of all."""
    x = np.asarray(x)
    return np.concatenate((x[..., ::2], x[..., 1::2]), axis=-1)


def _times(x: Any, factor: float) -> np.ndarray:
    """The product, of numbers of float32, in the dtype of `x`."""
    x = np.asarray(x)
    return (x.astype(np.float32) * np.float32(factor)).astype(x.dtype)


def _keys(path: Path, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """The keys of config.json, from shapes and MaxText's defaults."""
    by_layer = {
        (index, part): x.shape for _, index, part, x in layers(arrays, r"decoder/layers_(\d+)", "decoder/layers")
    }
    try:
        vocab_size, width = arrays["token_embedder/embedding"].shape
        _, heads, head_dim = by_layer[0, "self_attention/query/kernel"]
        _, kv_heads, _ = by_layer[0, "self_attention/key/kernel"]
        _, mlp = by_layer[0, "mlp/wi_0/kernel"]
    except (KeyError, ValueError):
        have = ", ".join(list(arrays)[:3])
        raise UserError(f"{path}: is not MaxText's Llama; has {have}, …") from None
    twin = "add the config.json of its Hugging Face twin to the directory"
    if vocab_size == LLAMA3_VOCABULARY:
        raise UserError(f"{path}: is a Llama 3, and a checkpoint does not say how its positions are scaled; {twin}")
    if "decoder/logits_dense/kernel" not in arrays:
        raise UserError(
            f"{path}: decoder/logits_dense/kernel is missing; if the embeddings are its projection, {twin} "
            "(tie_word_embeddings: true, MaxText's normalize_embedding_logits: false)"
        )
    errors.note(f"{path}: rope_theta 10000 and rms_norm_eps 1e-5 are taken, MaxText's defaults; for others, {twin}")
    return {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocab_size, "hidden_size": width,
        "intermediate_size": mlp, "num_hidden_layers": 1 + max(index for index, _ in by_layer),
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, **DEFAULTS,
    }  # fmt: skip
