"""Random models of `transformers` and what is asked of ours beside them."""

import json

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from jaxpt.hf import directory, load, mapping, verify
from jaxpt.models import stored

V, LAYERS, D, HEADS, FF = 101, 3, 24, 3, 40
GRADIENT_TOLERANCE = 1e-3


def randomise(model, seed):
    """Weights large enough that every part of the model matters; tied tensors stay tied."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(0, 0.2, generator=generator)
            is_scale = ("norm" in name.lower() or "ln_" in name) and not name.endswith("bias")
            weight.add_(is_scale and "Gemma" not in type(model).__name__)  # Gemma's factor is 1 + weight
    return model.eval()


def with_ids_of(model, inputs):
    """Their model with the special ids of a `verify.task_batch`."""
    ids = {"pad_token_id": verify.PADDING, "eos_token_id": verify.EOS}
    ids |= {"decoder_start_token_id": int(inputs["shifted"][0, 0])} if "shifted" in inputs else {}
    for key, value in ids.items():
        setattr(model.config, key, value)
    return model


def untie(model):
    """Gives the output projection a tensor of its own, in spite of a class that ties it."""
    import torch

    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    return model


def check(make, path, seeds=(0, 1), forward=verify.TOLERANCE, gradient=GRADIENT_TOLERANCE):
    """Outputs, loss and gradients equal, and the way back: exported files load strictly, with the same tensors.

    Args:
      make: makes their model.
      path: an empty directory.
      seeds: of weights and inputs; one compiled function of ours serves all.
      forward: tolerance of the outputs.
      gradient: tolerance of the gradients.

    Returns:
      {output: largest relative difference}.
    """
    step, largest = None, {}
    for seed in seeds:
        model, here = randomise(make(), seed), path / str(seed)
        model.save_pretrained(here / "theirs")
        ours, params = load(here / "theirs")
        family = directory.family_of(ours.config, model.config.model_type)
        ours = family.network(ours.config.model_copy(update={"dtype": "float32"}), ours.heads)
        step = step or compiled(ours)
        for name, found in measured(model, ours, params, verify.batch(ours.config, seed=seed), step).items():
            assert found.relative < (gradient if name == "gradient" else forward), (name, found)
            largest[name] = max(largest.get(name, 0.0), found.relative)
        save_as(model.config.model_type, here / "ours", ours, params)
        again, info = type(model).from_pretrained(here / "ours", output_loading_info=True)
        assert not any(info.values()), info
        state = again.state_dict()
        for name, tensor in model.state_dict().items():
            assert tensor.equal(state[name]), name
        before, after = (json.loads((here / side / "config.json").read_text()) for side in ("theirs", "ours"))
        is_windowed = "sliding_attention" in after.get("layer_types", ["sliding_attention"])
        for key in (option.theirs for option in family.options):
            if key == "sliding_window" and not is_windowed:
                continue  # no layer reads it
            assert key not in after or before.get(key, after[key]) in (after[key], None), key
    return largest


def save_as(model_type, path, ours, params):
    """`jaxpt.hf.save` of a model that was read as a model_type, of several that can express it."""
    flat = traverse_util.flatten_dict(dict(params), sep="/")
    dtypes = {name: x.dtype for name, x in flat.items()}
    directory.write(path, ours, flat, dtypes, origin={"model_type": model_type})


def fused_as_one_by_one(state, table):
    """{their name: array} with a tensor for each expert, as on disk."""
    if table.fused_experts is None:
        return state
    cuts = {name: directory.expert_names(name, x.shape, table.fused_experts) for name, x in state.items()}
    alone = {name: x for name, x in state.items() if not cuts[name]}
    return alone | {new: state[name][e, i:j] for name, of in cuts.items() for new, (e, i, j) in of.items()}


def compiled(ours):
    """(params, inputs, weights) → the gradient of Σ weights · tanh(outputs), and the outputs."""

    def loss(params, inputs, weights):
        out = verify.ours(ours, params, inputs)
        return sum((jnp.tanh(out[name]) * w).sum() for name, w in weights.items()), out

    return jax.jit(jax.grad(loss, has_aux=True))


def measured(model, ours, params, inputs, step):
    """How far all outputs are apart, and the gradients of a smooth function of them: of these the worst parameter's."""
    import torch

    theirs = verify.theirs(model, inputs)
    rng = np.random.default_rng(7)
    weights = {
        name: verify.real(name, rng.normal(size=x.shape).astype(np.float32), inputs) for name, x in theirs.items()
    }
    model.zero_grad()
    sum((torch.tanh(theirs[name]) * torch.from_numpy(w)).sum() for name, w in weights.items()).backward()

    gradient, mine = jax.device_get(step(params, inputs, weights))
    assert set(mine) == set(theirs)
    out = verify.differences(mine, theirs, inputs)
    grads = dict(model.named_parameters())
    idle = {n for n, w in grads.items() if w.grad is None}
    assert all(".experts." in n for n in idle), idle  # a module for each expert: some got no token
    table = directory.family_of(ours.config, model.config.model_type).table_of(ours)
    state = fused_as_one_by_one({n: (0 * w.detach() if n in idle else w.grad).numpy() for n, w in grads.items()}, table)
    found = mapping.find({n: x.shape for n, x in state.items()}, table, ours)
    wanted = stored.gather(mapping.pieces(state, found, table, ours), stored.stored_params(ours))
    flat = jax.tree_util.tree_leaves_with_path(gradient)
    largest = max(float(np.abs(g).max()) for _, g in flat)
    apart, has_rotary = [], getattr(ours.config, "positions", "rotary") == "rotary"
    for path, g in flat:
        want = wanted
        for key in path:
            want = want[key.key]
        # Some are zero but for rounding: so is a bias of keys without rotary positions, which shifts all scores alike.
        shifts = [key.key for key in path[-2:]] == ["key", "bias"] and not has_rotary
        floor = 1e-2 if shifts else 1e-3
        scale = max(float(np.abs(want).max()), floor * largest)
        apart.append(verify.Difference(float(np.abs(g - want).max()), scale))
    return out | {"gradient": max(apart, key=lambda difference: difference.relative)}
