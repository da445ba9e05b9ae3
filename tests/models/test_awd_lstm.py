"""AWD-LSTM: its state, its five dropouts, and a step beside torch's LSTMs with the same dropped weights."""

import functools
import itertools
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.config import build
from jaxpt.models.awd_lstm import AWDLSTMConfig, WordDropout
from jaxpt.models.layers import Dropout
from jaxpt.models.network import Network
from jaxpt.train import step
from tests import families
from tests.models.helpers import drawn, packed

V, D, H, LENGTH = 203, 8, 12, 7


@functools.cache
def made(options="{}"):
    sizes = {"vocab_size": V, "embed_dim": D, "hidden_dim": H, "dtype": "float32", **json.loads(options)}
    network = Network(AWDLSTMConfig(**sizes).build())
    return network, drawn(network)


def close(one, other):
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
def test_a_text_in_two_batches_equals_it_in_one():
    network, params = made()
    tokens = np.random.default_rng(0).integers(0, V, (2, 2 * LENGTH))

    @jax.jit
    def run(params):
        decode = network.bind(params).decode
        first = decode(tokens[:, :LENGTH])
        return first, decode(tokens[:, LENGTH:], memory=first.memory), decode(tokens)

    first, second, whole = run(params)
    close(np.concatenate([first.hidden, second.hidden], 1), whole.hidden)
    close(second.memory, whole.memory)
    assert [x.shape for x in jax.tree.leaves(first.memory)] == [(1, 2, H)] * 4 + [(1, 2, D)] * 2


@pytest.mark.gpu
def test_packed_texts_do_not_see_each_other():
    network, params = made()
    decode = jax.jit(lambda tokens, ids: network.bind(params).decode(tokens, segment_ids=ids).hidden)
    for together, alone in zip(*packed(lambda tokens, ids, positions: decode(tokens, ids), 16)):
        close(together, alone)


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_only_the_outer_layers_change_the_width(layers):
    network = Network(AWDLSTMConfig(vocab_size=V, embed_dim=D, hidden_dim=H, layers=layers).build())
    widths = [D, *[H] * (layers - 1), D]
    lstms = sum(4 * b * (a + b + 1) for a, b in itertools.pairwise(widths))
    assert network.count_params() == lstms + V * (D + 1)


def test_variational_dropout_has_one_mask_for_all_tokens_of_a_row():
    kept = Dropout(0.5, (1,)).apply({}, jnp.ones((3, 5, 64)), rngs={"dropout": jax.random.key(0)})
    np.testing.assert_array_equal(kept, np.broadcast_to(kept[:, :1], kept.shape))
    assert set(np.unique(kept)) == {0, 2} and len(np.unique(kept[:, 0], axis=0)) == 3


def test_a_dropped_word_is_dropped_everywhere():
    tokens = np.random.default_rng(0).integers(0, 20, (4, 50))
    rngs = {"dropout": jax.random.key(0)}
    factor = WordDropout(V, 0.5).apply({}, tokens, jnp.ones((*tokens.shape, 2)), rngs=rngs)[..., 0]
    of_words = [np.unique(factor[tokens == word]) for word in range(20)]
    assert all(len(x) == 1 for x in of_words) and {float(x[0]) for x in of_words} == {0, 2}


def test_a_scale_that_drops_more_than_all_is_refused():
    with pytest.raises(ValueError, match=r"dropout_scale: 5.0 · input_dropout 0.25 is above 1"):
        AWDLSTMConfig(vocab_size=V, dropout_scale=5.0)


@pytest.mark.slow
@pytest.mark.parity
def test_a_step_is_torchs():
    """Loss, AR, TAR, the state that is carried on, and all gradients; dropouts are factors that torch is given."""
    torch = pytest.importorskip("torch")
    model = {"kind": "awd_lstm", "vocab_size": V, "embed_dim": D, "hidden_dim": H, "dtype": "float32"}
    data = {"length": LENGTH, "batch_size": 3}
    config = build(families.tree("gpt2", data=data) | {"model": model, "objective": {"kind": "recurrent_lm"}})
    network = families.network(config)
    params, batch, objective = drawn(network), whole_rows(config), config.objective
    carry = jax.tree.map(
        lambda x: np.random.default_rng(1).normal(size=x.shape).astype(x.dtype), objective.carry_shapes(network, 3)
    )
    key = jax.random.key(3)
    gradients = jax.jit(functools.partial(step.gradients, objective, network))
    grads, found, after = gradients(params, batch, key, carry=carry)
    expected = torchs_step(torch, params["model"], batch, carry, factors(network, params, batch, carry, key))
    losses, torch_grads, torch_after = expected
    for part, value in losses.items():
        np.testing.assert_allclose(found[part], value, rtol=1e-5)
    total = losses["recurrent_lm"] + 2 * losses["activation"] + losses["temporal_activation"]
    np.testing.assert_allclose(found["loss"], total, rtol=1e-5)
    for ours, theirs in ((grads["model"], torch_grads), (after, torch_after)):
        for a, b in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max())


def whole_rows(config):
    """A batch without padding, all targets of weight 1."""
    batch = families.batch(config)
    ones = {name: np.ones_like(batch[f"decoder_{name}"]) for name in ("segment_ids", "loss_weights")}
    return batch | {f"decoder_{name}": x for name, x in ones.items()}


def factors(network, params, batch, carry, key):
    """What each dropout multiplies with, in the order of the calls: outputs over inputs, without compilation."""
    calls = []

    def record(call, args, kwargs, context):
        out = call(*args, **kwargs)
        if isinstance(context.module, Dropout):
            out, x = np.asarray(out), np.asarray(args[0])
            calls.append(np.divide(out, x, out=np.ones_like(x), where=x != 0))
        return out

    memory = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), carry)
    with jax.disable_jit(), nn.intercept_methods(record):
        bound = network.bind(params, {"dropout": key, "sample": key})
        bound.lm_states(bound.decode(batch["decoder_input_tokens"], memory=memory).hidden)
    return calls


def torchs_step(torch, model, batch, carry, factors):
    """(losses, gradients like the parameters, carry), with `nn.LSTM` and PyTorch's gates i, f, g, o."""
    words, inputs, *of_layers, output = factors
    leaves = jax.tree.map(lambda x: torch.tensor(np.asarray(x), requires_grad=True), model)
    tokens, targets = (torch.tensor(batch[f"decoder_{name}"]).long() for name in ("input_tokens", "target_tokens"))
    x = leaves["token_embed"]["table"][tokens] * torch.tensor(words)[tokens][..., None] * torch.tensor(inputs)
    after = []
    for number in range(3):
        lstm = leaves["decoder"][f"segment_{number}"]["block_0"]["lstm"]
        weights = of_layers[2 * number : 2 * number + 2]
        kernel, bias, recurrent = lstm["input"]["kernel"][0], lstm["input"]["bias"][0], lstm["recurrent_kernel"][0]
        layer = torch.nn.LSTM(kernel.shape[0], recurrent.shape[0], batch_first=True)
        named = {
            "weight_ih_l0": kernel.T, "weight_hh_l0": (recurrent * torch.tensor(weights[0])).T, "bias_ih_l0": bias,
            "bias_hh_l0": torch.zeros_like(bias),
        }  # fmt: skip
        state = tuple(torch.tensor(np.asarray(x)).swapaxes(0, 1) for x in carry[number][0])
        x, state = torch.func.functional_call(layer, named, (x, state))
        after.append(((state[0].detach().swapaxes(0, 1).numpy(), state[1].detach().swapaxes(0, 1).numpy()),))
        raw, x = x, x * torch.tensor(weights[1]) if number < 2 else x
    dropped = raw * torch.tensor(output)
    logits = dropped @ leaves["token_embed"]["table"][:V].T + leaves["output_bias"][:V]
    losses = {
        "recurrent_lm": torch.nn.functional.cross_entropy(logits.reshape(-1, V), targets.reshape(-1)),
        "activation": dropped.pow(2).mean(),
        "temporal_activation": (raw[:, 1:] - raw[:, :-1]).pow(2).mean(),
    }
    (losses["recurrent_lm"] + 2 * losses["activation"] + losses["temporal_activation"]).backward()
    return {name: x.item() for name, x in losses.items()}, jax.tree.map(lambda x: x.grad.numpy(), leaves), tuple(after)
