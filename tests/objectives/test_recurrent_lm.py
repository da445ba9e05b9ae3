"""Language modelling with a carried state: windows of random lengths, resets, regularisers, meshes, resumes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import tensorflow as tf

from jaxpt import config as configs
from jaxpt.data.calls import Vocabulary
from jaxpt.data.preprocessors import windows
from jaxpt.data.seqio_tasks import bind
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.objectives.activation import ActivationRegularizer
from jaxpt.objectives.recurrent_lm import RecurrentLM
from jaxpt.train import state, step
from tests import families
from tests.extending.conftest import lab  # noqa: F401
from tests.models.helpers import drawn

MODEL = {"kind": "awd_lstm", "vocab_size": 200, "embed_dim": 8, "hidden_dim": 16, "dtype": "float32"}
LENGTH, ROWS = 10, 4
BYTES = Vocabulary(size=259, eos=1)
TEXTS = ["a quick brown fox", "b", "jumps over the lazy dog and more"]


def recipe(objective=None, model=None, data=None, **sections):
    tree = families.tree("gpt2", data=data or {"length": LENGTH, "batch_size": ROWS}, **sections)
    objective = {"kind": "recurrent_lm", **(objective or {})}
    return configs.build(tree | {"model": MODEL | (model or {}), "objective": objective})


def examples(objective, length):
    ds = tf.data.Dataset.from_tensor_slices({"text": TEXTS, "origin": np.zeros([3, 2], np.int64)})
    spec = objective.data_spec(length)
    transforms = spec.transforms(BYTES, 0)
    for call in (*transforms.offline, *transforms.online):
        ds = bind(call, seqio.ByteVocabulary())(ds)
    assert {name: (tuple(x.shape), x.dtype.name) for name, x in ds.element_spec.items()} == spec.features
    return list(ds.as_numpy_iterator())


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_token_but_the_first_is_a_target_once(direction):
    out = examples(RecurrentLM(direction=direction, bptt=8, bptt_std=2), 12)
    texts = [seqio.ByteVocabulary().encode(text)[:: 1 if direction == "forward" else -1] for text in TEXTS]
    targets = [int(i) for ex in out for i in ex["decoder_target_tokens"][ex["decoder_segment_ids"] > 0]]
    assert targets == [i for text in texts for i in [*text, 1]][1:]
    assert len({int(ex["decoder_loss_weights"].sum()) for ex in out}) > 1


def test_random_windows_have_the_lengths_of_the_released_code():
    """N(70, 5²), and N(35, 5²) for a twentieth; the origin of each is its first token's."""
    sizes = np.random.default_rng(0).integers(1, 900, 200)
    docs = [np.arange(n) + 10_000 * number for number, n in enumerate(sizes)]
    origin = tf.constant([[number % 3, number] for number in range(len(docs))], tf.int64)
    ds = tf.data.Dataset.from_tensor_slices({"tokens": tf.ragged.constant(docs, tf.int32), "origin": origin})
    cut = [windows.cut_random(ds, 90, 70, 5.0, 0.05, seed).as_numpy_iterator() for seed in (1, 1, 2)]
    (records, again, other) = ([(ex["tokens"].tolist(), ex["origin"].tolist()) for ex in it] for it in cut)
    assert records == again != other
    assert [i for n, (tokens, _) in enumerate(records) for i in tokens[n > 0 :]] == [i for doc in docs for i in doc]
    assert all(tokens[0] == 10_000 * document + offset for tokens, (_, document, offset) in records)
    lengths = np.array([len(tokens) - 1 for tokens, _ in records[:-1]])
    half = lengths < 52
    assert abs(half.mean() - 0.05) < 3 * np.sqrt(0.05 * 0.95 / len(lengths))
    for drawn_lengths, mean in ((lengths[~half], 70), (lengths[half], 35)):
        assert abs(drawn_lengths.mean() - mean) < 4 * 5 / np.sqrt(len(drawn_lengths)) and 3 < drawn_lengths.std() < 7


def test_regularisers_are_the_formulas_and_have_no_share_in_evaluation():
    rng = np.random.default_rng(0)
    hidden, dropped = rng.normal(size=(2, 3, 5, 4))
    segments = np.array([[1, 1, 1, 2, 2], [1, 1, 0, 0, 0], [0] * 5])
    regularizer = ActivationRegularizer()
    trained, evaluated = (Bound(None, {}, rngs) for rngs in ({"dropout": jax.random.key(0)}, {}))
    sums, weights = regularizer.sums(trained, hidden, dropped, segments), regularizer.weights(segments)
    real, pairs = segments > 0, [(0, 1), (0, 2), (0, 4), (1, 1)]
    temporal = sum(((hidden[b, t] - hidden[b, t - 1]) ** 2).mean() for b, t in pairs)
    np.testing.assert_allclose(sums["activation"], (dropped[real] ** 2).mean(-1).sum(), rtol=1e-6)
    np.testing.assert_allclose(sums["temporal_activation"], temporal, rtol=1e-6)
    assert {name: float(x) for name, x in weights.items()} == {"activation": 7, "temporal_activation": 4}
    assert all(float(x) == 0 for x in regularizer.sums(evaluated, hidden, dropped, segments).values())
    assert ActivationRegularizer(activation=0).coefficients() == {"temporal_activation": 1.0}


@functools.cache
def gradients_of(accumulation=1):
    config = recipe()
    network = families.network(config)
    rng = np.random.default_rng(3)
    carry = jax.tree.map(
        lambda x: rng.normal(size=x.shape).astype(x.dtype), config.objective.carry_shapes(network, ROWS)
    )
    return jax.jit(
        lambda params: step.gradients(
            config.objective, network, params, families.batch(config), None, accumulation, carry
        )
    )(drawn(network))


def test_accumulation_changes_nothing_and_keeps_rows_with_their_state():
    (grads, metrics, after), whole = gradients_of(2), gradients_of(1)
    np.testing.assert_allclose(metrics["loss"], whole[1]["loss"], rtol=1e-5)
    for a, b in zip(*map(jax.tree.leaves, ((grads, after), (whole[0], whole[2]))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def zeros(shapes):
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def test_the_state_is_zero_at_the_start_of_documents():
    """Also of one that begins with a window; elsewhere it is carried on, wherever windows end."""
    config = recipe({"reset_at_documents": True}, {"vocab_size": 259, "layers": 2})
    network = families.network(config)
    params = drawn(network)
    texts = [seqio.ByteVocabulary().encode(text) for text in TEXTS]
    rows = [[*([1] if number else []), *text, 1] for number, text in enumerate(texts)]  # EOS opens and closes
    longest = max(map(len, rows))
    tokens = np.array([row + [0] * (longest - len(row)) for row in rows])
    whole = {
        "decoder_input_tokens": tokens[:, :-1], "decoder_target_tokens": tokens[:, 1:],
        "decoder_loss_weights": (tokens[:, 1:] > 0).astype(np.float32),
        "decoder_segment_ids": (tokens[:, 1:] > 0).astype(np.int32), "decoder_positions": tokens[:, 1:],
    }  # fmt: skip
    expected = RecurrentLM(carry=False).loss(network.bind(params), whole)[0]["recurrent_lm"]
    loss = jax.jit(lambda batch, carry: config.objective.loss(network.bind(params), batch, carry)[::2])
    length = len(texts[0])
    for bptt in (None, 8):
        objective = RecurrentLM(reset_at_documents=True, bptt=bptt, bptt_std=2)
        carry, total, at_starts = zeros(objective.carry_shapes(network, 1)), 0.0, 0
        for example in examples(objective, length):
            batch = {name: x[None] for name, x in example.items()}
            sums, carry = loss(batch, carry)
            total += sums["recurrent_lm"]
            at_starts += int(batch["decoder_continues"][0] == 0)
        np.testing.assert_allclose(total, expected, rtol=1e-5)
        assert at_starts or bptt, "the second window begins with a document"


@pytest.mark.slow
def test_a_mixed_mesh_changes_no_gradient():
    def gradients(mesh):
        data = {"length": 16, "batch_size": 16}
        config = recipe(data=data, mesh=mesh)
        setup, rows = state.setup(config), families.batch(config)
        with setup.use():
            params, carry = families.begin(setup).params, setup.empty_carry()
            find = jax.jit(functools.partial(step.gradients, config.objective, setup.network))
            return jax.device_get(find(params, step.put(rows, setup), jax.random.key(0), carry=carry)[0])

    one, other = (gradients(mesh) for mesh in ({"data": 2, "fsdp": 2, "tensor": 2}, {"data": 8}))
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(b).max())


@pytest.mark.slow
def test_a_run_resumes_with_its_state(lab):  # noqa: F811
    objective = {"kind": "recurrent_lm", "bptt": 12, "reset_at_documents": True}
    end = lab.assert_resumes(model={**MODEL, "vocab_size": 300}, objective=objective)
    carry = jax.tree.leaves(end.carry)
    assert [x.shape for x in carry] == [(8, 1, 16)] * 4 + [(8, 1, 8)] * 2 and all(x.any() for x in carry)


def test_what_cannot_work_is_refused():
    config = recipe()
    objective = config.objective
    objective.check(config.model, LENGTH, BYTES)
    with pytest.raises(UserError, match=r"objective\.separator: true requires a vocabulary with an end-of-text token"):
        objective.check(config.model, LENGTH, Vocabulary(size=200))
    with pytest.raises(UserError, match=r"objective\.bptt: 70 is above data\.length 10"):
        RecurrentLM(bptt=70).check(config.model, LENGTH, BYTES)
    with pytest.raises(UserError, match=r"objective\.carry: model\.kind: gpt2 has no state to carry"):
        objective.check(families.config("gpt2").model, LENGTH, BYTES)
    with pytest.raises(UserError, match=r"reset_at_documents: true requires EOS between documents"):
        RecurrentLM(reset_at_documents=True, separator=False).check(config.model, LENGTH, BYTES)
    with pytest.raises(UserError, match=r"data\.packing: .*recurrent_lm continues each row in the next batch"):
        objective.data_spec(32).check_packing(objective.kind)
