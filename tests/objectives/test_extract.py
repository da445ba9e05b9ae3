"""GPT-1's input for heads, [START] a [DELIM] b [EXTRACT], both orders of a pair, and the auxiliary language model."""

import dataclasses
import itertools
import json

import jax
import numpy as np
import pytest

from jaxpt.cli import main
from jaxpt.config import to_yaml
from jaxpt.errors import UserError
from jaxpt.models.network import Network
from jaxpt.objectives.labelled import GPT1_TOKENS
from tests import fine_tuning, labelled
from tests.labelled import LENGTH, VOCABULARY, V, features_of, objective_of, records_of, rows_of
from tests.models.helpers import EVERY, drawn
from tests.objectives.helpers import alike

START, DELIMITER, EXTRACT = V, V + 1, V + 2
GROWN = dataclasses.replace(
    VOCABULARY, size=V + 3, added=tuple(zip(GPT1_TOKENS, (START, DELIMITER, EXTRACT))), behind=3
)
KINDS = ("classification", "regression", "multi_label", "multiple_choice")
FORMS = [(kind, False) for kind in KINDS] + [("classification", True), ("multi_label", True)]
QUICK = ("classification", True)
GRID = (("classification", False), ("multi_label", True))


@pytest.fixture(autouse=True)
def _grown(monkeypatch):
    monkeypatch.setattr(labelled, "VOCABULARY", GROWN)


def made(kind, is_symmetric=False, **options):
    """(objective, its records)"""
    h = objective_of(kind, EVERY["gpt2"](), extract=True, lm_loss=0.5, **options)
    if is_symmetric:
        h = h.model_copy(update={"task": h.task.model_copy(update={"is_symmetric": True})})
    return h, records_of(h, rows_of(kind, h.layout(GROWN), is_full=False))


def sequences(h, records):
    """Token ids of each sequence of each record."""
    found = []
    for record in records:
        if "sizes" in record:
            lines = record["tokens"].reshape(len(record["sizes"]), -1)
            found.append([line[:size].tolist() for line, size in zip(lines, record["sizes"]) if size])
        else:
            ends = [0, *(record["positions"] + 1)]
            found.append([record["tokens"][a:b].tolist() for a, b in itertools.pairwise(ends)])
    return found


@pytest.mark.parametrize(("kind", "is_symmetric"), FORMS)
def test_sequences_are_those_of_the_paper(kind, is_symmetric):
    h, records = made(kind, is_symmetric)
    rows = rows_of(kind, h.layout(GROWN), is_full=False)
    for row, found in zip(rows, sequences(h, records), strict=True):
        a, b, c = ([int(x) for x in row.row.values[name].split()] for name in "abc")
        if kind == "regression":
            want = [[START, *a, EXTRACT]]
        elif kind == "multiple_choice":
            want = [[START, *a, DELIMITER, *one, EXTRACT] for one in (b, c)]
        else:
            want = [[START, *a, DELIMITER, *b, EXTRACT], [START, *b, DELIMITER, *a, EXTRACT]][: 1 + is_symmetric]
        assert found == want


@pytest.mark.parametrize(
    ("kind", "is_symmetric"),
    [
        pytest.param(*form, marks=[pytest.mark.slow] * (form != QUICK) + [pytest.mark.grid] * (form in GRID))
        for form in FORMS
    ],
)
def test_packed_rows_and_single_sequences_have_the_same_loss(kind, is_symmetric):
    """Against each sequence read alone: the head on the state (or sum of states) at [EXTRACT]; the mean of −log p of
    the tokens after the first of each sequence, and the mean of these over sequences."""
    h, records = made(kind, is_symmetric, examples=4)
    config = EVERY["gpt2"](vocab_size=GROWN.size, layers=1)
    network = Network(config.build(), h.heads(config))
    params = drawn(network)
    most = len(records)
    ways = None, np.array([0, most - 1, most])
    padded, packed = alike(*(features_of(h, records, most * h.row_length(LENGTH), packs) for packs in ways))

    def total(params, batch):
        sums, _ = h.loss(network.bind(params), batch)
        weights, coefficients = h.weights(batch), h.coefficients()
        parts = {name: sums[name] / weights[name] for name in coefficients}
        outputs = h.predict(network.bind(params), batch)
        return sum(parts[name] * coefficient for name, coefficient in coefficients.items()), (parts, outputs)

    step = jax.jit(jax.grad(total, has_aux=True))
    (g_one, (one, outputs)), (g_two, (two, _)) = step(params, padded), step(params, packed)
    assert set(one) == {h.kind, "lm"} and h.coefficients()["lm"] == 0.5
    for name in one:
        np.testing.assert_allclose(one[name], two[name], rtol=1e-5)
    for a, b in zip(jax.tree.leaves(g_one), jax.tree.leaves(g_two)):
        np.testing.assert_allclose(a, b, atol=1e-5)

    @jax.jit
    def alone(params, ids_L):
        hidden_LxD = network.bind(params).decode(ids_L[None]).hidden[0]
        return hidden_LxD, jax.nn.log_softmax(network.bind(params).logits(hidden_LxD))

    means, states = [], []
    for of_record in sequences(h, records):
        states.append([])
        for ids in of_record:
            hidden, logp = alone(params, np.pad(ids, (0, LENGTH - len(ids))))
            means.append(-np.asarray(logp)[np.arange(len(ids) - 1), ids[1:]].mean())
            states[-1].append(hidden[len(ids) - 1])
    np.testing.assert_allclose(one["lm"], np.mean(means), rtol=1e-5)
    head = "choice" if kind == "multiple_choice" else "classes"
    for own, found in zip(states, np.asarray(outputs)[:, 0]):
        kernel = np.asarray(params["heads"][head]["dense"]["kernel"])
        want = np.stack(own) @ kernel if head == "choice" else np.sum(own, 0) @ kernel
        np.testing.assert_allclose(found, want.ravel(), rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_is_refused():
    h = objective_of("classification", EVERY["gpt2"](), extract=True)
    with pytest.raises(UserError, match=r"no \[START\]; set data.tokenizer.add_tokens='\[\"\[START\]\", \"\[DELIM\]\""):
        h.check(EVERY["gpt2"](), LENGTH, VOCABULARY)
    idle = h.model_copy(update={"z_loss": 1e-4})
    assert idle.idle_settings() == (f"objective.z_loss: not used by {h.kind}; remove it",)
    assert idle.model_copy(update={"lm_loss": 0.5}).idle_settings() == ()
    idle.model_copy(update={"lm_loss": 0.5}).check(EVERY["gpt2"](), LENGTH, GROWN)
    for options in ({"extract": True}, {"lm_loss": 0.5}):
        of_bert = objective_of("classification", EVERY["bert"](), **options)
        with pytest.raises(UserError, match=f"objective.{next(iter(options))}: is for decoders; model.kind: bert is"):
            of_bert.check(EVERY["bert"](), LENGTH, GROWN)


@pytest.mark.slow
def test_a_run_learns_predicts_and_is_exported(tmp_path, capsys):
    """A pretrained GPT-2 reads pairs in both orders, packed; what it predicts does not depend on the order given."""
    made = fine_tuning.rows(64)
    for row in made:
        row["label"] = str(int(any(w in row["text"].split() for w in fine_tuning.GOOD)))
    config = fine_tuning.recipe(
        tmp_path, f"data.tokenizer.add_tokens={json.dumps(GPT1_TOKENS)}", "data.packing=true", "train.steps=8",
        of="gpt2", made=made,
        task={"kind": "classification", "pair": "other", "is_symmetric": True, "temperature": 2.0},
        model={**fine_tuning.MODELS["gpt2"], "layers": 1, "vocab_size": 40},
        objective={"extract": True, "lm_loss": 0.5},
    )  # fmt: skip
    assert config.model.vocab_size == 43
    run, recipe = tmp_path / "run", str(tmp_path / "saved.yaml")
    (tmp_path / "saved.yaml").write_text(to_yaml(config))
    assert main(["train", recipe, "train.steps=4"]) == main(["train", recipe]) == 0  # stopped and resumed
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("lm" in key for line in metrics for key in line)
    swapped = [{**row, "text": row["other"], "other": row["text"]} for row in made]
    file, out = fine_tuning.write(tmp_path / "both.jsonl", made + swapped), tmp_path / "both_out.jsonl"
    assert main(["predict", str(run), file, "--out", str(out)]) == 0
    answers = [json.loads(line)["probabilities"] for line in out.read_text().splitlines()]
    one, two = np.split(np.array([[row["0"], row["1"]] for row in answers]), 2)
    np.testing.assert_allclose(one, two, atol=1e-5)
    assert np.ptp(one[:, 0]) > 1e-4
    assert main(["export", str(run), str(tmp_path / "out")]) == 0
    assert "logits divided by the temperature 2, as in predict" in capsys.readouterr().out
    exported = json.loads((tmp_path / "out" / "config.json").read_text())
    assert exported["vocab_size"] == 43 and exported["architectures"] == ["GPT2ForSequenceClassification"]


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_the_step_is_that_of_transformers(kind, tmp_path):
    """loss = head + ½ · language model of OpenAIGPT's classes on one backbone, its gradients too."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from jaxpt import hf

    torch.manual_seed(0)
    size = {"vocab_size": GROWN.size, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 32, "num_labels": 3}
    size["num_labels"] = 1 if kind == "regression" else 3
    config = transformers.OpenAIGPTConfig(**size, pad_token_id=0)
    theirs = transformers.OpenAIGPTForSequenceClassification(config).eval()
    lm = transformers.OpenAIGPTLMHeadModel(config).eval()
    lm.transformer = theirs.transformer
    lm.lm_head.weight = theirs.transformer.tokens_embed.weight
    theirs.save_pretrained(tmp_path)
    network, params = hf.load(tmp_path)
    h, records = made(kind)
    batch = features_of(h, records, LENGTH)

    def total(params):
        sums, _ = h.loss(network.bind(params), batch)
        weights = h.weights(batch)
        return sum(c * sums[name] / weights[name] for name, c in h.coefficients().items())

    value, gradients = jax.jit(jax.value_and_grad(total))(params)
    wanted = []
    for record in records:
        ids = torch.tensor([record["tokens"].tolist()])
        target = torch.tensor([record["target"].item()])
        wanted.append(theirs(input_ids=ids, labels=target).loss + 0.5 * lm(input_ids=ids, labels=ids).loss)
    want = torch.stack(wanted).mean()
    want.backward()
    np.testing.assert_allclose(value, want.item(), rtol=1e-5)
    for mine, grad in (
        (gradients["model"]["token_embed"]["table"][: GROWN.size], theirs.transformer.tokens_embed.weight.grad),
        (gradients["heads"]["classes"]["dense"]["kernel"].T, theirs.score.weight.grad),
        (gradients["model"]["position_embed"]["table"], theirs.transformer.positions_embed.weight.grad),
    ):
        np.testing.assert_allclose(mine, grad.numpy(), atol=1e-4 * np.abs(grad.numpy()).max())


@pytest.mark.parity
def test_multiple_choice_is_that_of_the_double_heads_model(tmp_path):
    """OpenAIGPTDoubleHeadsModel: the language model's loss there is one mean over all tokens, so lines are equally long
    here; its summary has a bias, which is the same for all choices."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from jaxpt import hf

    torch.manual_seed(0)
    size = {"vocab_size": GROWN.size, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 32}
    theirs = transformers.OpenAIGPTDoubleHeadsModel(transformers.OpenAIGPTConfig(**size)).eval()
    transformers_lm = transformers.OpenAIGPTLMHeadModel(theirs.config)
    transformers_lm.transformer = theirs.transformer
    transformers_lm.lm_head.weight = theirs.lm_head.weight = theirs.transformer.tokens_embed.weight
    transformers_lm.save_pretrained(tmp_path)
    backbone, loaded = hf.load(tmp_path)
    h = objective_of("multiple_choice", backbone.config, extract=True, lm_loss=0.5)
    network = Network(backbone.model, h.heads(backbone.config))
    kernel = theirs.multiple_choice_head.summary.weight.detach().numpy().T
    params = {"model": loaded["model"], "heads": {"choice": {"dense": {"kernel": kernel}}}}
    records = records_of(h, rows_of("multiple_choice", h.layout(GROWN), is_full=True))
    assert (np.stack([record["sizes"] for record in records]) == LENGTH).all()
    batch = features_of(h, records, h.row_length(LENGTH))
    sums, _ = jax.jit(lambda params: h.loss(network.bind(params), batch))(params)
    weights = h.weights(batch)
    value = sum(c * sums[name] / weights[name] for name, c in h.coefficients().items())
    ids = torch.tensor(np.stack([record["tokens"].reshape(2, -1) for record in records])).long()
    got = theirs(
        input_ids=ids, mc_token_ids=torch.full((len(records), 2), LENGTH - 1), labels=ids,
        mc_labels=torch.tensor([int(record["target"]) for record in records]),
    )  # fmt: skip
    np.testing.assert_allclose(value, (got.mc_loss + 0.5 * got.loss).item(), rtol=1e-5)
