"""Distillation: the loss by hand, no gradient for the teacher, and what does not go together."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from tests import families
from tests.models.helpers import drawn

TASKS = {
    "bert": {"kind": "masked_lm", "next_sentence": False},
    "gpt2": {"kind": "causal_lm"},
    "mixture": {"kind": "causal_lm"},
    "t5": {"kind": "span_corruption"},
}


def config(family, **objective):
    settings = {"kind": "distillation", "teacher": "somewhere", "of": TASKS[family], **objective}
    return families.config(family, objective=settings, model={"layers": 1}, data={"batch_size": 4})


def teacher_of(family, **sizes):
    """(network, other parameters than those of `drawn`)"""
    network = families.network(families.config(family, model={"layers": 2, **sizes}))
    return network, jax.tree.map(lambda x: 1.5 * x, drawn(network))


@functools.cache
def measured(family, **objective):
    """(config, batch, sums, metrics, gradients of student and teacher, hidden states and logits of both)."""
    settings = config(family, **objective)
    batch, student = families.batch(settings), families.network(settings)
    teacher, taught = teacher_of(family, **({"embed_dim": 48} if objective.get("cosine_weight") == 0 else {}))
    params = drawn(student)

    @jax.jit
    def run(params, taught):
        def total(params, taught):
            teachers = {"teacher": (teacher, taught)}
            sums, metrics = settings.objective.loss(student.bind(params), batch, teachers=teachers)
            return sum(sums.values()), (sums, metrics)

        grads, (sums, metrics) = jax.grad(total, argnums=(0, 1), has_aux=True)(params, taught)
        sides = []
        for network, p in ((student, params), (teacher, taught)):
            hidden = settings.objective.of.output(network.bind(p), batch).hidden
            sides.append((hidden, network.bind(p).logits(hidden)))
        return sums, metrics, grads, sides

    return settings, batch, *jax.device_get(run(params, taught))


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.parametrize(
    ("family", "options"), [("bert", {}), ("bert", {"positions": "targets", "cosine_weight": 0}), ("gpt2", {})]
)
@pytest.mark.slow
def test_the_loss_by_hand(family, options):
    settings, batch, sums, metrics, _, ((mine, z_mine), (theirs, z_theirs)) = measured(family, **options)
    real = (batch["encoder_segment_ids" if family == "bert" else "decoder_segment_ids"] > 0).astype(np.float32)
    compared = real
    if options:  # every weighted target once, wherever it stands in the row
        compared = np.zeros_like(real)
        for row, (at, weight) in enumerate(zip(batch["masked_positions"], batch["masked_weights"])):
            compared[row, at] = weight
    log_s, log_t = (log_softmax(z.astype(np.float64) / 2) for z in (z_mine, z_theirs))
    kl = 4 * (np.exp(log_t) * (log_t - log_s)).sum(-1)
    np.testing.assert_allclose(sums["kl"], (kl * compared).sum(), rtol=1e-5)
    agree = (z_mine.argmax(-1) == z_theirs.argmax(-1)) * compared
    assert metrics["agreement"] == (agree.sum(), compared.sum())
    weights = settings.objective.weights(batch)
    assert weights["kl"] == compared.sum()
    coefficients = settings.objective.coefficients()
    assert coefficients == {"kl": 5, TASKS[family]["kind"]: 2} | ({} if options else {"cosine": 1})
    assert set(sums) == set(weights) == set(coefficients)
    if not options:
        cos = (mine * theirs).sum(-1) / np.linalg.norm(mine, axis=-1) / np.linalg.norm(theirs, axis=-1)
        np.testing.assert_allclose(sums["cosine"], ((1 - cos) * real).sum(), rtol=1e-5)
        assert weights["cosine"] == real.sum()
        student = families.network(settings)
        of_task = settings.objective.of.loss_from_hidden
        task, _ = jax.jit(lambda params: of_task(student.bind(params), mine, batch))(drawn(student))
        np.testing.assert_allclose(sums[TASKS[family]["kind"]], task[TASKS[family]["kind"]], rtol=1e-5)


def test_the_routers_of_a_student_are_in_the_metrics():
    settings = config("mixture", cosine_weight=0)
    settings = settings.model_copy(update={"model": settings.model.model_copy(update={"sparse_every": 1})})
    batch, student, (teacher, taught) = families.batch(settings), families.network(settings), teacher_of("gpt2")

    @jax.jit
    def run(params):
        bound = student.bind(params)
        sums, metrics = settings.objective.loss(bound, batch, teachers={"teacher": (teacher, taught)})
        return sums, metrics, settings.objective.of.output(bound, batch)

    sums, metrics, output = run(drawn(student))
    assert {"router/share", "router/dropped", "router/entropy"} == set(output.metrics) and "router_z" in sums
    assert set(metrics) > {"agreement", *output.metrics}
    for name, pair in output.metrics.items():
        for found, expected in zip(metrics[name], pair, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.slow
def test_the_teacher_gets_no_gradient_and_the_student_one_everywhere():
    student, teacher = measured("bert")[4]
    assert all(not g.any() for g in jax.tree.leaves(teacher))
    for path, g in jax.tree.leaves_with_path(student):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        assert g.any() or name.endswith("key/bias"), name


@pytest.mark.slow
def test_a_student_that_is_its_teacher_has_nothing_to_learn():
    settings = config("t5", loss_chunk=5)
    batch, network = families.batch(settings), families.network(settings)
    params = drawn(network)

    @jax.jit
    def run(params):
        def apart(p):
            sums, metrics = settings.objective.loss(network.bind(p), batch, teachers={"teacher": (network, params)})
            return sums["kl"] + sums["cosine"], (sums, metrics)

        return jax.grad(apart, has_aux=True)(params)

    grads, (sums, metrics) = run(params)
    tokens = batch["decoder_target_tokens"].size
    assert abs(sums["kl"]) < 1e-5 * tokens and abs(sums["cosine"]) < 1e-5 * tokens
    assert max(float(jnp.abs(g).max()) for g in jax.tree.leaves(grads)) < 1e-4
    assert metrics["agreement"][0] == metrics["agreement"][1] > 0


def test_what_does_not_go_with_a_teacher_is_refused():
    settings = config("bert")
    vocabulary = Vocabulary(size=200, cls=2, sep=3, mask=4)

    def refused(match, teacher=None, objective=None):
        with pytest.raises(UserError, match=match):
            checked = objective or settings.objective
            if teacher is None:
                checked.check(settings.model, 32, vocabulary)
            else:
                checked.check_teachers(settings.model, 32, {"teacher": teacher})

    def bert(**sizes):
        return families.network(families.config("bert", model=sizes))

    refused(
        "is of family decoder, but model.kind: bert is of family encoder", families.network(families.config("gpt2"))
    )
    refused("has 300 token ids, but model.vocab_size is 200", bert(vocab_size=300))
    refused("has 16 positions, but data.length is 32", bert(max_positions=16))
    refused("width 48, but model.embed_dim is 32; .* objective.cosine_weight=0", bert(embed_dim=48))
    refused("has no masked-LM head, so it has no", dataclasses.replace(bert(), heads={}))
    config("bert", cosine_weight=0).objective.check_teachers(settings.model, 32, {"teacher": bert(embed_dim=48)})
    refused("replaced_token cannot be distilled", objective=config("bert", of={"kind": "replaced_token"}).objective)
    assert config("bert", z_loss=1e-4).objective.idle_settings() == (
        "objective.z_loss: not used by distillation; set objective.of.z_loss instead",
    )
    settings.objective.check(settings.model, 32, vocabulary)


@pytest.mark.parametrize(
    ("of", "family", "teacher", "sizes", "said"),
    [
        ("unilm", "bert", "bert", {"kind": "deberta", "buckets": 8}, "encode has no argument ranks"),
        ("prefix_lm", "gpt2", "awd_lstm", {}, "decode has no argument prefix"),
    ],
)
def test_a_teacher_that_does_not_read_the_batches_is_refused(of, family, teacher, sizes, said):
    settings, network = config(family, of={"kind": of}), families.network(families.config(teacher, model=sizes))
    kind = network.config.kind
    with pytest.raises(UserError, match=f"{kind}, does not support objective.of.kind: {of}: its {said}; take another"):
        settings.objective.check_teachers(settings.model, 32, {"teacher": network})


@pytest.mark.parametrize(
    ("of", "types", "needed"),
    [
        ({"kind": "unilm"}, 2, 6), ({"kind": "unilm"}, 6, None), ({"kind": "translation_lm"}, 1, 2),
        ({"kind": "masked_lm", "next_sentence": False}, 1, None), ({"kind": "masked_lm"}, 0, None),
    ],
)  # fmt: skip
def test_token_types_that_a_teacher_lacks_are_named(of, types, needed):
    """They would be zeros: a new run is refused, one that an earlier version let begin goes on."""
    teacher = families.network(families.config("bert", model={"token_types": types}))
    lines = config("bert", of=of).objective.missing_teacher_rows({"teacher": teacher})
    said = f"has {types} token types, but the inputs of objective.of.kind: {of['kind']} have {needed}; take another"
    assert [said in line for line in lines] == ([True] if needed else [])


def test_a_teacher_and_a_task_are_wanted():
    with pytest.raises(UserError, match=r"objective\.teacher is missing"):
        families.config("bert", objective={"kind": "distillation"})
    with pytest.raises(UserError, match="mask_rat"):
        config("bert", of={"kind": "masked_lm", "mask_rat": 0.1})
    assert config("bert").objective.of.kind == "masked_lm"
