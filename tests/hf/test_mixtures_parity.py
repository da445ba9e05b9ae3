"""Mixtures of experts beside transformers: outputs, gradients with auxiliary losses, and the way back."""

import functools

import jax
import numpy as np
import pytest

from jaxpt.hf import directory, load, mapping, verify
from jaxpt.models import stored
from tests.hf.parity import D, V, check, fused_as_one_by_one, randomise

pytestmark = [pytest.mark.parity, pytest.mark.slow]

SIZES = {
    "vocab_size": V, "hidden_size": D, "num_attention_heads": 6, "num_key_value_heads": 2,
    "max_position_embeddings": 32, "num_experts_per_tok": 2,
}  # fmt: skip
CASES = {
    "mixtral": ("Mixtral", SIZES | {"num_hidden_layers": 2, "intermediate_size": 20, "num_local_experts": 5}),
    "qwen3_moe": (
        "Qwen3Moe",
        SIZES | {
            "num_hidden_layers": 5, "intermediate_size": 40, "moe_intermediate_size": 12, "num_experts": 7,
            "decoder_sparse_step": 2, "mlp_only_layers": [3], "num_experts_per_tok": 3, "head_dim": 8,
            "norm_topk_prob": True,
        },
    ),
    "olmoe": (
        "Olmoe",
        SIZES | {
            "num_hidden_layers": 3, "intermediate_size": 12, "num_experts": 6, "num_experts_per_tok": 3,
            "clip_qkv": 1.5, "eos_token_id": 2,
        },
    ),
}  # fmt: skip


def their(name):
    """Their model of a case."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    prefix, options = CASES[name]
    config = getattr(transformers, f"{prefix}Config")(**options, router_aux_loss_coef=0.5)
    return getattr(transformers, f"{prefix}ForCausalLM")(config)


@pytest.mark.parametrize("name", CASES)
def test_outputs_gradients_and_the_way_back(name, tmp_path):
    check(functools.partial(their, name), tmp_path, seeds=(0,), forward=1e-5, gradient=1e-4)


def assert_equal_gradients(model, loss, network, params, ours):
    """Of a loss of theirs, and a function of our parameters."""
    import torch

    loss.backward()
    found, gradient = jax.jit(jax.value_and_grad(ours))(params)
    np.testing.assert_allclose(found, loss.item(), rtol=1e-5)
    table = directory.family_of(network.config, model.config.model_type).table_of(network)
    grads = {name: torch.zeros_like(w) if w.grad is None else w.grad for name, w in model.named_parameters()}
    state = fused_as_one_by_one({name: grad.numpy() for name, grad in grads.items()}, table)
    found = mapping.find({n: x.shape for n, x in state.items()}, table, network)
    wanted = stored.gather(mapping.pieces(state, found, table, network), stored.stored_params(network))
    largest = max(float(np.abs(x).max()) for x in jax.tree.leaves(wanted))
    assert largest > 1e-3
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4 * largest), gradient, wanted)


def test_tensors_of_all_experts_together_are_read(tmp_path):
    from safetensors.numpy import load_file, save_file

    model = randomise(their("mixtral"), 2)
    model.save_pretrained(tmp_path)
    _, params = load(tmp_path)
    file = tmp_path / "model.safetensors"
    assert any(".experts.0.w1." in name for name in load_file(file))  # transformers writes them one by one
    save_file({name: x.detach().numpy().copy() for name, x in model.state_dict().items()}, file)
    assert any(name.endswith("experts.gate_up_proj") for name in load_file(file))
    jax.tree.map(np.testing.assert_array_equal, load(tmp_path)[1], params)


SWITCH = {
    "vocab_size": V, "d_model": D, "d_kv": 5, "num_heads": 3, "d_ff": 20, "num_layers": 4, "num_decoder_layers": 6,
    "num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 3, "num_experts": 5, "expert_capacity": 3,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16, "router_z_loss_coef": 0.25,
    "router_aux_loss_coef": 0.5, "router_jitter_noise": 0.0,
}  # fmt: skip


def switch(**options):
    """Their Switch Transformer, whose capacity of a row drops tokens."""
    transformers = pytest.importorskip("transformers")
    return transformers.SwitchTransformersForConditionalGeneration(
        transformers.SwitchTransformersConfig(**SWITCH | options)
    )


def test_switch_with_its_capacity(tmp_path):
    pytest.importorskip("torch")
    check(switch, tmp_path, seeds=(0,), forward=1e-5, gradient=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_their_auxiliary_loss(name, tmp_path):
    """`balance: mixtral`: means over the batch and all layers, padding left out."""
    import torch

    model = randomise(their(name), 1)
    model.save_pretrained(tmp_path)
    network, params = load(tmp_path)
    batch = verify.batch(network.config)
    tokens, segments = batch["tokens"], batch["segments"]
    model.zero_grad()
    given = {"input_ids": tokens, "attention_mask": segments}
    aux = model(**{key: torch.from_numpy(x).long() for key, x in given.items()}, output_router_logits=True).aux_loss
    network = network.with_model(balance="mixtral", dtype="float32")

    def ours(params):
        return network.bind(params).decode(tokens, segment_ids=segments).aux["router_balance"] / segments.sum()

    assert_equal_gradients(model, 0.5 * aux, network, params, ours)


def test_gradients_of_the_auxiliary_losses_of_switch(tmp_path):
    """`balance: switch_pooled`, rows without padding, which theirs counts."""
    import torch

    model = randomise(switch(), 1)
    model.save_pretrained(tmp_path)
    network, params = load(tmp_path)
    rng = np.random.default_rng(0)
    inputs, targets = rng.integers(2, V, (2, 12)), rng.integers(2, V, (2, 10))
    model.zero_grad()
    found = model(
        input_ids=torch.from_numpy(inputs), decoder_input_ids=torch.from_numpy(targets), output_router_logits=True
    )
    balance, z = (getattr(found, f"encoder_{x}_loss") + getattr(found, f"decoder_{x}_loss") for x in ("aux", "z"))
    network = network.with_model(balance="switch_pooled", dtype="float32")

    def ours(params):
        bound = network.bind(params)
        encoded = bound.encode(inputs)
        decoded = bound.decode(targets, encoded.hidden).aux
        sums = encoded.aux | decoded
        sides = {"encoder": inputs.size, "decoder": targets.size}
        return sum(sums[f"{side}_router_{x}"] / size for side, size in sides.items() for x in ("balance", "z"))

    assert_equal_gradients(model, 0.5 * balance + 0.25 * z, network, params, ours)
