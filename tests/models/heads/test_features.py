"""What a head reads of a model: each choice of states against its formula, the mix and the LSTM against torch."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.heads import features
from jaxpt.models.heads.features import BiLSTM, BiLSTMConfig, FeaturesConfig
from jaxpt.models.layers import PARAMETER_AXES
from jaxpt.models.network import Network
from jaxpt.models.output import Output
from tests import grids
from tests.models.helpers import EVERY, bert, drawn

N, B, L, D, H = 3, 4, 7, 24, 5
LENGTHS = (7, 3, 1, 5)


def states(seed=0, *shape):
    return np.random.default_rng(seed).normal(size=shape or (N, B, L, D)).astype(np.float32)


def padded():
    """Segment ids of one text a row."""
    return (np.arange(L) < np.array(LENGTHS)[:, None]).astype(np.int32)


def applied(settings, given, segments=None):
    """(features, parameters) of some states, under a two-layer BERT's heads with drawn parameters."""
    return several([settings], given, segments)[0]


def several(every, given, segments=None):
    """The same for each of several settings: one program."""
    configs = [FeaturesConfig(**settings) for settings in every]
    declared = [features.declare(bert(), config, "encoder") for config in configs]
    networks = [Network(bert().build(), heads) for heads, _ in declared]
    params = [drawn(network) for network in networks]
    ids = padded() if segments is None else segments

    def run(given, params):
        output = Output(given[-1], given)
        bound = [network.bind(own) for network, own in zip(networks, params)]
        return [features.apply(config, own, output, ids) for config, own in zip(configs, bound)]

    found = jax.jit(run)(given, params)
    assert all(x.hidden.shape == (B, L, width) and x.layers is None for x, (_, width) in zip(found, declared))
    return [(np.asarray(x.hidden), jax.tree.map(np.asarray, own.get("heads", {}))) for x, own in zip(found, params)]


def normalized(x):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True))


def test_states_are_those_of_the_layers_named():
    given = states()
    wanted = {"last": given[2], 0: given[0], -2: given[1], 2: given[2]}
    found = several([{"layers": layers, "norm": norm} for layers in wanted for norm in (False, True)], given)
    for plain, normed, want in zip(found[::2], found[1::2], wanted.values(), strict=True):
        np.testing.assert_array_equal(plain[0], want)
        np.testing.assert_allclose(normed[0], normalized(want), rtol=1e-5, atol=1e-6)
    found, _ = applied({"layers": (-1, 0)}, given)
    np.testing.assert_array_equal(found, np.concatenate([given[2], given[0]], axis=-1))


def test_the_mix_begins_with_the_mean():
    heads, _ = features.declare(bert(), FeaturesConfig(layers="mix"), "encoder")
    network, given = Network(bert().build(), heads), states()
    own = jax.jit(lambda key: network.init(key)["heads"])(jax.random.key(0))
    params = {**drawn(network), "heads": own}
    found = jax.jit(lambda params: network.bind(params).heads["layer_mix"](given))(params)
    np.testing.assert_allclose(found, given.mean(0), rtol=1e-5, atol=1e-6)
    params["heads"]["layer_mix"] = {"weights": np.log([1.0, 2.0, 5.0]), "scale": np.float32(2)}
    (line,) = features.report_lines(params)
    assert line == "mix of layers: 2.000 × (embeddings 0.125  1 0.250  2 0.625)"
    assert features.report_lines({"model": {}}) == []


@pytest.mark.parity
@pytest.mark.parametrize("norm", [False, True])
def test_the_mix_and_its_gradients_are_those_of_torch(norm):
    """allennlp's ScalarMix; its norm's statistics are of a batch, ours of a token, as torch's layer_norm."""
    import torch

    given, of_output = states(), states(1, B, L, D)
    found, params = applied({"layers": "mix", "norm": norm}, given)
    mix = params["layer_mix"]
    w, scale = (torch.tensor(mix[name], requires_grad=True) for name in ("weights", "scale"))
    shares = torch.softmax(w, 0)
    tensors = [torch.tensor(x) for x in given]
    tensors = [torch.nn.functional.layer_norm(x, (D,), eps=1e-12) for x in tensors] if norm else tensors
    want = scale * sum(share * x for share, x in zip(shares, tensors))
    np.testing.assert_allclose(found, want.detach().numpy(), rtol=1e-4, atol=1e-5)
    (want * torch.tensor(of_output)).sum().backward()
    seen = np.stack([x.numpy() for x in tensors])
    own = jax.jit(jax.grad(lambda p: (features.LayerMix().apply({"params": p}, seen) * of_output).sum()))(mix)
    np.testing.assert_allclose(own["weights"], w.grad.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(own["scale"], scale.grad.numpy(), rtol=1e-4, atol=1e-4)


def lstm(layers=2, **options):
    """(module, parameters) of a bidirectional LSTM."""
    module = BiLSTM(BiLSTMConfig(size=H, layers=layers, **options), jnp.float32)
    boxed = jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.zeros((1, 1, D)), jnp.zeros((1, 1), int)))
    rng = np.random.default_rng(3)
    return module, jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32) / 3, boxed)["params"]


def unboxed(params):
    return jax.tree.map(lambda box: box.value, params, is_leaf=lambda x: hasattr(x, "value"))


@pytest.mark.parity
def test_the_lstm_and_its_gradients_are_those_of_torch():
    import torch
    from torch.nn.utils import rnn

    module, params = lstm()
    params, given, of_output = unboxed(params), states(0, B, L, D), states(1, B, L, 2 * H)
    segments, is_real = padded(), padded()[..., None]
    theirs = torch.nn.LSTM(D, H, num_layers=2, bidirectional=True, batch_first=True)
    names = {
        f"{way}_{layer}": f"l{layer}{end}"
        for layer in (0, 1)
        for way, end in (("forward", ""), ("backward", "_reverse"))
    }
    with torch.no_grad():
        for name, end in names.items():
            own = params[name]
            getattr(theirs, f"weight_ih_{end}").copy_(torch.tensor(own["input"]["kernel"].T))
            getattr(theirs, f"weight_hh_{end}").copy_(torch.tensor(own["recurrent_kernel"].T))
            getattr(theirs, f"bias_ih_{end}").copy_(torch.tensor(own["input"]["bias"]))
            getattr(theirs, f"bias_hh_{end}").zero_()
    x = torch.tensor(given, requires_grad=True)
    packed = rnn.pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
    want, _ = rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    (want * torch.tensor(of_output)).sum().backward()

    def total(params, x):
        found = module.apply({"params": params}, x, segments) * is_real
        return (found * of_output).sum(), found

    (_, found), (grads, of_x) = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))(params, given)
    np.testing.assert_allclose(found, want.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_x, x.grad.numpy(), rtol=1e-4, atol=1e-5)
    for name, end in names.items():
        own = grads[name]
        pairs = (
            (own["input"]["kernel"].T, f"weight_ih_{end}"), (own["input"]["bias"], f"bias_ih_{end}"),
            (own["recurrent_kernel"].T, f"weight_hh_{end}"),
        )  # fmt: skip
        for x, other in pairs:
            np.testing.assert_allclose(x, getattr(theirs, other).grad.numpy(), rtol=1e-4, atol=1e-5, err_msg=other)


def test_the_lstm_sees_neither_padding_nor_neighbours():
    module, params = lstm()
    params, given = unboxed(params), states(0, B, L, D)
    alone, texts = np.zeros((B, sum(LENGTHS) + 2, D), np.float32), [x[:n] for x, n in zip(given, LENGTHS)]
    for row, text in zip(alone, texts):
        row[: len(text)] = text
    together = np.concatenate([*texts, states(5, 2, D)])
    rows = np.concatenate([alone, together[None]])  # each alone, then all of them in a row
    segments = (np.arange(rows.shape[1]) < np.array([*LENGTHS, 0])[:, None]).astype(np.int32)
    segments[-1] = np.repeat([1, 2, 3, 4, 0], [*LENGTHS, 2])
    rows[0, LENGTHS[0] :] = 3.0  # padding of any kind
    found = np.asarray(jax.jit(lambda x: module.apply({"params": params}, x, segments))(rows))
    separate = np.concatenate([x[:n] for x, n in zip(found, LENGTHS)])
    np.testing.assert_allclose(found[-1, :-2], separate, rtol=1e-5, atol=1e-6)
    unpadded = jax.jit(lambda x: module.apply({"params": params}, x, np.ones(x.shape[:2], np.int32)))(given)
    np.testing.assert_allclose(unpadded[0], found[0, :L], rtol=1e-5, atol=1e-6)


def test_a_fresh_lstm_keeps_the_length_of_its_state():
    module, _ = lstm(layers=1)
    init = jax.jit(lambda key: module.init(key, jnp.zeros((1, 1, D)), jnp.zeros((1, 1), int))["params"])
    params = jax.tree.map(np.asarray, unboxed(init(jax.random.key(0))))
    for gate in np.split(params["forward_0"]["recurrent_kernel"], 4, axis=1):
        np.testing.assert_allclose(gate @ gate.T, np.eye(H), atol=1e-5)
    assert not params["backward_0"]["input"]["bias"].any()


def test_dropout_of_the_lstm_is_on_the_input_of_each_layer():
    module, params = lstm(dropout=0.5)
    run = functools.partial(module.apply, {"params": unboxed(params)}, states(0, B, L, D), padded())
    both = jax.jit(lambda key: (run(rngs={"dropout": key}), run()))
    dropped, plain = both(jax.random.key(0))
    assert not np.array_equal(dropped, plain)
    np.testing.assert_array_equal(dropped, both(jax.random.key(0))[0])


def test_a_frozen_model_is_read_without_dropout_and_has_no_gradient():
    rngs = {"dropout": jax.random.key(0)}
    bound = Bound(None, {}, rngs, {"tags": "its head"})
    for frozen in (True, False):
        config = FeaturesConfig(layers="mix", frozen=frozen)
        backbone, options = features.reader(config, bound)
        assert backbone.rngs == ({} if frozen else rngs) and options == {"layers": True}
        assert backbone == dataclasses.replace(bound, rngs=backbone.rngs)
        heads, _ = features.declare(bert(), config, "encoder")
        network = Network(bert().build(), heads)
        params = drawn(network)

        def total(x, config=config, network=network, params=params):
            return features.apply(config, network.bind(params), Output(x[-1], x), padded()).hidden.sum()

        assert (np.abs(jax.jit(jax.grad(total))(states())).max() == 0) == frozen


@pytest.mark.parametrize("name", grids.cases(["bert", "deberta_v2", "xlnet", "gpt2", "bart"], "deberta_v2", "bart"))
def test_depth_and_axes(name):
    model = EVERY[name]()
    config = FeaturesConfig(layers="mix", bilstm={"size": 3})
    for stack in ("encoder", "decoder") if model.family == "encoder_decoder" else (model.family,):
        heads, width = features.declare(model, config, stack)
        network = Network(model.build(), heads)
        layers = model.decoder_layers if (name, stack) == ("bart", "decoder") else model.layers
        assert network.shapes()["heads"]["layer_mix"]["weights"].shape == (layers + 1,) and width == 6
        axes = jax.tree.leaves(network.logical_axes()["heads"], is_leaf=lambda x: isinstance(x, tuple))
        assert all(set(names) <= set(PARAMETER_AXES) for names in axes)


class NoLayers:
    """A model whose layers are not asked for."""

    kind = "my_lab.lstm"

    def build(self):
        return self

    def encode(self, tokens_BxL):
        raise NotImplementedError


def test_what_a_model_has_not_is_refused():
    has = r"objective.features.layers: -?\d: the encoder has the layers 1 to 2 \(or -2"
    for layer, model in ((3, bert()), (-4, bert()), ((0, 9), bert())):
        with pytest.raises(UserError, match=has):
            features.declare(model, FeaturesConfig(layers=layer), "encoder")
    with pytest.raises(UserError, match=r"model.kind: my_lab.lstm does not return the states of its layers; only last"):
        features.declare(NoLayers(), FeaturesConfig(layers="mix"), "encoder")
