"""Checkpoints of T5X: T5 1.0, 1.1, LM-adapted and mT5 as t5x/examples/t5 names them, and t5x/examples/scalable_t5.

    checkpoint_1000000/checkpoint                                   flax.serialization: arrays, or where they are
    checkpoint_1000000/target.encoder.layers_0.mlp.wi.kernel/       an array of TensorStore (zarr)
    checkpoint_1000000/state/_METADATA                              later versions: a checkpoint of Orbax

In the first releases all arrays are in the file `checkpoint`. Layers have an array each (`encoder/layers_3/…`), or are
stacked along the second axis (`encoder/encoder/…`, scan_layers). Of scalable_t5 each layer has a position bias, as in
UMT5. Sizes are told from the shapes. Read with t5x/checkpoints.py and t5x/examples at cc342d4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxpt.errors import UserError
from jaxpt.hf.files import read_object
from jaxpt.hf.formats import msgpack_files, stores
from jaxpt.hf.formats.arrays import Array, Checkpoint, Tensors, check_whole, flat, layers

FILE, ORBAX = "checkpoint", "state"
SIDES = ("encoder", "decoder")
_BIAS = "layer.0.SelfAttention.relative_attention_bias.weight"
_ROUTER = ".mlp.router.classifier.weight"
_PROJECTIONS = {"query": "q", "key": "k", "value": "v", "out": "o"}


def reads(path: Path) -> bool:
    """True for a directory of one step."""
    if (path / ORBAX / stores.METADATA).is_file():
        return stores.has_paths(path / ORBAX, "target")
    file = path / FILE
    return file.is_file() and (any(path.glob("target.*")) or _starts_as_state(file))


def open(path: Path) -> Checkpoint:
    """Opens a directory of one step.

    Raises:
      UserError: it is half-written or damaged, an array is missing, or the model is no T5.
    """
    check_whole(path)
    arrays = stores.orbax(path / ORBAX, ("target",)) if (path / ORBAX).is_dir() else _target(path)
    tensors = dict(_renamed(arrays))
    if (path / "config.json").is_file():  # of the twin, for what no shape tells
        return Checkpoint(Tensors(tensors), read_object(path / "config.json"))
    shapes = {name: x.shape for name, x in tensors.items()}
    try:
        keys = _keys(shapes)
        routers = [name for name in shapes if name.endswith(_ROUTER)]
        if routers:
            switch_keys, change = _switch(path, keys, shapes, routers)
            return Checkpoint(Tensors(tensors), switch_keys, change)
    except (KeyError, ValueError, IndexError, ZeroDivisionError):
        have = ", ".join(list(arrays)[:3]) or "no parameters"
        raise UserError(f"{path}: is not T5X's T5, of which encoder and decoder are read; has {have}, …") from None
    return Checkpoint(Tensors(tensors), keys)


def _starts_as_state(file: Path) -> bool:
    with file.open("rb") as stream:
        start = stream.read(64)
    return start[:1] in (b"\x81", b"\x82", b"\x83") and (b"optimizer" in start or b"target" in start)


def _target(path: Path) -> dict[str, Array]:
    """{path of a parameter: array} of the file and what is beside it, without the optimizer's state."""
    content = msgpack_files.read(path / FILE)
    state = content.get("optimizer", content)
    target = state.get("target") if isinstance(state, Mapping) else None
    if not isinstance(target, Mapping):
        raise UserError(f"{path / FILE}: has no parameters under optimizer/target; expected a checkpoint of T5X")
    arrays = {}
    for name, x in flat(target, lambda node: "driver" in node and "kvstore" in node):
        if not isinstance(x, Array):
            x = stores.zarr(path / _folder(path, name, x))
        arrays[name] = x
    return arrays


def _folder(path: Path, name: str, spec: Any) -> str:
    """Name of the directory of an array, which a specification of TensorStore says."""
    kvstore = spec.get("kvstore") if isinstance(spec, Mapping) else None
    folder = (kvstore.get("path") or spec.get("path")) if isinstance(kvstore, Mapping) else None
    folder = folder.strip("/") if isinstance(folder, str) else ""
    if not folder or "/" in folder or folder.startswith("."):
        raise UserError(f"{path / FILE}: {name} is neither an array nor a directory beside it")
    return folder


def _renamed(arrays: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    """(Hugging Face's name, array); a name that is not T5's stays."""
    left, mlp = set(arrays), "mlp" if any("/mlp/expert/" in path for path in arrays) else "DenseReluDense"
    whole = {"token_embedder/embedding": "shared.weight", "decoder/logits_dense/kernel": "lm_head.weight"}
    for side in SIDES:
        whole[f"{side}/{side}_norm/scale"] = f"{side}.final_layer_norm.weight"
        whole[f"{side}/relpos_bias/rel_embedding"] = f"{side}.block.0.{_BIAS}"
        parts = _parts(side, mlp)
        for path, index, part, x in layers(arrays, rf"{side}/layers_(\d+)", f"{side}/{side}"):
            if part not in parts:
                continue
            left.discard(path)
            name = f"{side}.block.{index}.{parts[part]}"
            if "{expert}" in name:
                yield from ((name.format(expert=e), x.layer(e, axis=0).transposed()) for e in range(x.shape[0]))
            else:
                yield name, x if part.endswith("/scale") else x.transposed()
    for path in left:
        x = arrays[path]
        yield whole.get(path, path), x if path.endswith(("/scale", "/embedding")) else x.transposed()


def _parts(side: str, mlp: str) -> dict[str, str]:
    """{path in a layer of T5X: name in a layer of Hugging Face}; `mlp` is their name of the feed-forward."""
    attentions = {"attention": "SelfAttention"}
    norms = ("pre_attention_layer_norm", "pre_mlp_layer_norm")
    if side == "decoder":
        attentions = {"self_attention": "SelfAttention", "encoder_decoder_attention": "EncDecAttention"}
        norms = ("pre_self_attention_layer_norm", "pre_cross_attention_layer_norm", "pre_mlp_layer_norm")
    names = {f"{norm}/scale": f"layer.{i}.layer_norm.weight" for i, norm in enumerate(norms)}
    for i, (ours, theirs) in enumerate(attentions.items()):
        names |= {f"{ours}/{mine}/kernel": f"layer.{i}.{theirs}.{name}.weight" for mine, name in _PROJECTIONS.items()}
    mlp = f"layer.{len(attentions)}.{mlp}"
    names |= {f"mlp/expert/{name}/kernel": f"{mlp}.experts.expert_{{expert}}.{name}.weight" for name in ("wi", "wo")}
    names["mlp/router/router_weights/w/kernel"] = f"{mlp}.router.classifier.weight"
    names |= {f"mlp/{name}/kernel": f"{mlp}.{name}.weight" for name in ("wi", "wi_0", "wi_1", "wo")}
    return names | {"relpos_bias/rel_embedding": _BIAS}


def _keys(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """The keys of config.json, from Hugging Face's names and shapes; KeyError, ValueError: another model."""
    block = "encoder.block.0.layer"
    ups = (".wi.weight", ".wi_0.weight")
    wide = next((name for name in shapes if name.startswith("encoder.") and name.endswith(ups)), "")
    vocab_size, width = shapes["shared.weight"]
    buckets, heads = shapes[f"encoder.block.0.{_BIAS}"]
    is_gated = f"{block}.1.DenseReluDense.wi_0.weight" in shapes
    is_tied = "lm_head.weight" not in shapes
    has_biases = f"encoder.block.1.{_BIAS}" in shapes
    encoder, decoder = (1 + max(int(x.split(".")[2]) for x in shapes if x.startswith(f"{s}.block.")) for s in SIDES)
    return {
        "model_type": "umt5" if has_biases else "t5",
        "architectures": ["UMT5ForConditionalGeneration" if has_biases else "T5ForConditionalGeneration"],
        "vocab_size": vocab_size,
        "d_model": width,
        "d_kv": shapes[f"{block}.0.SelfAttention.q.weight"][0] // heads,
        "d_ff": shapes[wide][0],
        "num_layers": encoder,
        "num_decoder_layers": None if decoder == encoder else decoder,
        "num_heads": heads,
        "relative_attention_num_buckets": buckets,
        "feed_forward_proj": "gated-gelu" if is_gated else "relu",
        "tie_word_embeddings": is_tied,
    }


def _switch(
    path: Path, keys: dict[str, Any], shapes: Mapping[str, tuple[int, ...]], routers: list[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the keys of config.json of a Switch Transformer, what no key of it says): the released capacity."""
    sparse = {side: sorted(int(x.split(".")[2]) for x in routers if x.startswith(side)) for side in SIDES}
    counts = {"encoder": keys["num_layers"], "decoder": keys["num_decoder_layers"] or keys["num_layers"]}
    step = counts["encoder"] // len(sparse["encoder"])
    first = sparse["encoder"][0]
    for side, numbers in sparse.items():
        if numbers != (expected := [*range(first, counts[side], step)]):
            raise UserError(f"{path}: {side}: the layers {numbers} are sparse, expected one in {step}: {expected}")
    switch = {
        "model_type": "switch_transformers", "architectures": ["SwitchTransformersForConditionalGeneration"],
        "num_experts": shapes[routers[0]][0], "num_decoder_layers": counts["decoder"],
        **{f"num_sparse_{side}_layers": len(numbers) for side, numbers in sparse.items()},
    }  # fmt: skip
    keys = {key: x for key, x in keys.items() if key != "feed_forward_proj"} | switch
    released = {"capacity": None, "capacity_factor": 1.25, "eval_capacity_factor": 2.0, "balance_weight": 0.01}
    return keys, {"first_sparse": None if first == step - 1 else first, **released}
