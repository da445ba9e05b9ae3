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


@functools.cache
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


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_their_auxiliary_loss(name, tmp_path):
    """`balance: mixtral`: means over the batch and all layers, padding left out."""
    import torch

    model = randomise(their(name), 1)
    model.save_pretrained(tmp_path)
    network, params = load(tmp_path)
    network = network.with_model(balance="mixtral", dtype="float32")
    batch = verify.batch(network.config)
    tokens, segments = batch["tokens"], batch["segments"]

    model.zero_grad()
    given = {"input_ids": tokens, "attention_mask": segments}
    aux = model(**{key: torch.from_numpy(x).long() for key, x in given.items()}, output_router_logits=True).aux_loss
    (0.5 * aux).backward()

    def ours(params):
        return network.bind(params).decode(tokens, segment_ids=segments).aux["router_balance"] / segments.sum()

    loss, gradient = jax.jit(jax.value_and_grad(ours))(params)
    np.testing.assert_allclose(loss, 0.5 * aux.item(), rtol=1e-5)
    table = directory.family_of(network.config).table_of(network)
    grads = {name: torch.zeros_like(w) if w.grad is None else w.grad for name, w in model.named_parameters()}
    state = {name: grad.numpy() for name, grad in grads.items()}
    state = fused_as_one_by_one(state, table)
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
