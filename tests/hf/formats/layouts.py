"""Hugging Face's tensors in the layouts of T5X, MaxText and Flax, as their code writes them."""

import re

import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from flax import serialization, traverse_util

SIDES = ("encoder", "decoder")


def nested(flat):
    return traverse_util.unflatten_dict(flat, sep="/")


def stacked(flat, one, all_of):
    """Layers of {path: array} along the second axis: `one` is the pattern of a layer's path."""
    layers, out = {}, {}
    for path, x in flat.items():
        if match := re.match(one, path):
            layers.setdefault(path[match.end() :], {})[int(match[1])] = x
        else:
            out[path] = x
    return out | {f"{all_of}/{rest}": np.stack([x[i] for i in range(len(x))], axis=1) for rest, x in layers.items()}


def t5x(state, scan=False):
    """{path: array} of t5x/examples, from the tensors of T5 or UMT5."""
    flat = {"token_embedder/embedding": state["shared.weight"]}
    if "lm_head.weight" in state:
        flat["decoder/logits_dense/kernel"] = state["lm_head.weight"].T
    for side in SIDES:
        attention = {"attention": "layer.0.SelfAttention"}
        norms = ("pre_attention", "pre_mlp")
        if side == "decoder":
            attention = {
                "self_attention": "layer.0.SelfAttention",
                "encoder_decoder_attention": "layer.1.EncDecAttention",
            }
            norms = ("pre_self_attention", "pre_cross_attention", "pre_mlp")
        bias = "layer.0.SelfAttention.relative_attention_bias.weight"
        is_shared = f"{side}.block.1.{bias}" not in state
        flat[f"{side}/{side}_norm/scale"] = state[f"{side}.final_layer_norm.weight"]
        if is_shared:
            flat[f"{side}/relpos_bias/rel_embedding"] = state[f"{side}.block.0.{bias}"].T
        for i in range(sum(bool(re.fullmatch(rf"{side}\.block\.\d+\.layer\.0\.layer_norm\.weight", x)) for x in state)):
            ours, theirs = f"{side}/layers_{i}", f"{side}.block.{i}"
            for mine, name in attention.items():
                for p, q in zip(("query", "key", "value", "out"), "qkvo"):
                    flat[f"{ours}/{mine}/{p}/kernel"] = state[f"{theirs}.{name}.{q}.weight"].T
            for n, norm in enumerate(norms):
                flat[f"{ours}/{norm}_layer_norm/scale"] = state[f"{theirs}.layer.{n}.layer_norm.weight"]
            for name in ("wi", "wi_0", "wi_1", "wo"):
                for mlp in (f"{theirs}.layer.{len(norms) - 1}.{x}" for x in ("DenseReluDense", "mlp")):
                    x = state.get(f"{mlp}.{name}.weight")
                    if x is not None:
                        flat[f"{ours}/mlp/{name}/kernel"] = x.T
                    each = [key for key in state if key.startswith(f"{mlp}.experts.") and f".{name}." in key]
                    if each:
                        one = f"{mlp}.experts.expert_{{}}.{name}.weight"
                        flat[f"{ours}/mlp/expert/{name}/kernel"] = np.stack(
                            [state[one.format(e)].T for e in range(len(each))]
                        )
                        router = state[f"{mlp}.router.classifier.weight"]
                        flat[f"{ours}/mlp/router/router_weights/w/kernel"] = router.T
            if not is_shared:
                flat[f"{ours}/relpos_bias/rel_embedding"] = state[f"{theirs}.{bias}"].T
    for side in SIDES if scan else ():
        flat = stacked(flat, rf"{side}/layers_(\d+)/", f"{side}/{side}")
    return flat


def write_t5x(path, flat, layout="tensorstore", version=3):
    """A directory of a step: `Checkpointer.save`, that of the first releases ("msgpack"), or Orbax's."""
    path.mkdir(parents=True)
    optimizer = {
        "step": np.int32(7),
        "param_states": {"token_embedder": {"embedding": {"v_row": np.ones(3, np.float32)}}},
    }
    if layout == "orbax":
        tree = {"target": nested(flat), "state": optimizer}
        ocp.PyTreeCheckpointer().save(path.resolve() / "state", tree)
        return
    leaves = {}
    for name, x in flat.items():
        if layout == "msgpack" or x.size < 8:
            leaves[name] = np.array(x)
            continue
        folder = f"target.{name.replace('/', '.')}"
        chunks = [-(-x.shape[0] // 2), *x.shape[1:]]
        metadata = {"compressor": {"id": "gzip"}, "shape": list(x.shape), "chunks": chunks}
        spec = {"driver": "zarr", "dtype": x.dtype.name, "metadata": metadata}
        store = {"driver": "file", "path": str(path / folder)}
        tensorstore.open(spec | {"kvstore": store}, create=True).result().write(x).result()
        where = {"kvstore": {"driver": "gcs", "bucket": "t5x-dummy-bucket"}, "path": folder}
        leaves[name] = spec | ({"kvstore": {"driver": "file", "path": f"{folder}/"}} if version == 3 else where)
    content = {"version": version, "optimizer": {"target": nested(leaves), "state": optimizer}}
    (path / "checkpoint").write_bytes(serialization.to_bytes(content if version else content["optimizer"]))


def maxtext(state, heads, kv_heads, scan=True, paired=False):
    """{path: array} of MaxText, from the tensors of Llama, as its checkpoint_conversion makes them."""
    flat = {
        "token_embedder/embedding": state["model.embed_tokens.weight"],
        "decoder/decoder_norm/scale": state["model.norm.weight"],
    }
    if "lm_head.weight" in state:
        flat["decoder/logits_dense/kernel"] = state["lm_head.weight"].T
    for i in range(sum(name.endswith("input_layernorm.weight") for name in state)):
        ours, theirs = f"decoder/layers_{i}", f"model.layers.{i}"
        for name, q, count in (("query", "q", heads), ("key", "k", kv_heads), ("value", "v", kv_heads)):
            x = state[f"{theirs}.self_attn.{q}_proj.weight"].T
            x = x.reshape(x.shape[0], count, -1)
            if paired and q in "qk":
                first, second = np.split(x, 2, axis=-1)
                x = np.stack([first, second], axis=-1).reshape(x.shape)
            flat[f"{ours}/self_attention/{name}/kernel"] = x / np.float32(x.shape[-1] ** 0.5) if q == "q" else x
        out = state[f"{theirs}.self_attn.o_proj.weight"].T
        flat[f"{ours}/self_attention/out/kernel"] = out.reshape(heads, -1, out.shape[1])
        for name, x in (("wi_0", "gate"), ("wi_1", "up"), ("wo", "down")):
            flat[f"{ours}/mlp/{name}/kernel"] = state[f"{theirs}.mlp.{x}_proj.weight"].T
        for name, x in (("pre", "input"), ("post", "post_attention")):
            flat[f"{ours}/{name}_self_attention_layer_norm/scale"] = state[f"{theirs}.{x}_layernorm.weight"]
    return stacked(flat, r"decoder/layers_(\d+)/", "decoder/layers") if scan else flat


def write_maxtext(path, flat, ocdbt=True, zarr3=False):
    """A directory of a step, as MaxText's checkpoint manager writes it."""
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt, use_zarr3=zarr3)
    manager = ocp.Checkpointer(ocp.CompositeCheckpointHandler(items=handler))
    tree = {"step": np.int32(0), "params": {"params": nested(flat)}, "opt_state": {}}
    manager.save(path.resolve(), args=ocp.args.Composite(items=ocp.args.PyTreeSave(tree)))


def flax(state, norms=r"norm|ln_", embeddings=r"embed|shared|wte|wpe|relative_attention_bias"):
    """{path: array} of a Flax class of transformers, from the tensors of its PyTorch class."""
    flat = {}
    for name, x in state.items():
        *modules, last = name.split(".")
        module = modules[-1].lower() if modules else ""
        if last == "weight" and "t5" not in norms and re.search(norms, module):
            last = "scale"
        elif last == "weight" and re.search(embeddings, module) and x.ndim == 2:
            last = "embedding"
        elif last == "weight" and x.ndim == 2:
            last, x = "kernel", x.T
        flat["/".join((*modules, last))] = x
    return flat


def write_flax(path, flat, shards=1):
    """flax_model.msgpack, or shards with their index, beside config.json."""
    import json

    names = list(flat)
    if shards == 1:
        (path / "flax_model.msgpack").write_bytes(serialization.to_bytes(nested(flat)))
        return
    places = {}
    for i in range(shards):
        file = f"flax_model-{i + 1:05d}-of-{shards:05d}.msgpack"
        part = {name: flat[name] for name in names[i::shards]}
        (path / file).write_bytes(serialization.to_bytes(part))
        places |= dict.fromkeys(part, file)
    (path / "flax_model.msgpack.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
