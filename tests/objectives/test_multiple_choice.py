"""Multiple choice: padded and packed rows, the loss, transformers' classes, and a run."""

import gzip
import json

import jax
import numpy as np
import pytest

from jaxpt.cli import main
from jaxpt.data.calls import Vocabulary
from jaxpt.data.labelled import rows
from jaxpt.data.labelled.choices import rows_of_choices
from jaxpt.data.tasks.multiple_choice import MultipleChoiceTask
from jaxpt.errors import UserError
from jaxpt.objectives.multiple_choice import MultipleChoice
from tests.models.heads.test_heads import bound
from tests.models.helpers import EVERY
from tests.objectives.helpers import alike

VOCABULARY = Vocabulary(size=40, cls=2, sep=3, bos=2, eos=3)
SIZES = [(5, 9, 7), (4, 6, 0), (8, 8, 3)]


def objective(model):
    return MultipleChoice(task=MultipleChoiceTask(most_choices=3), text_layout=model.text_layout, examples=3)


def made(seed=0):
    """Records of random tokens."""
    rng = np.random.default_rng(seed)

    def record(sizes):
        tokens = np.zeros((3, max(sizes)), np.int32)
        for line, size in zip(tokens, sizes):
            line[:size] = rng.integers(5, 40, size)
        return {
            "tokens": tokens.ravel(), "token_types": np.zeros(tokens.size, np.int32),
            "sizes": np.array(sizes, np.int32),
            "target": np.int32(rng.integers(2)),
        }  # fmt: skip

    return [record(sizes) for sizes in SIZES]


def batch_of(h, records, line, packs=None):
    keys = h.to_features(line, VOCABULARY).kwargs
    return rows_of_choices(rows.together(records), **keys, packs=packs)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_padded_and_packed_rows_have_the_same_loss(name):
    model = EVERY[name](layers=1)
    h, records = objective(model), made()
    network, _ = bound(model, h.heads(model))
    padded, packed = alike(batch_of(h, records, 24), batch_of(h, records, 24, np.array([0, 2, 3])))

    @jax.jit
    def run(batch):
        sums, metrics = h.loss(network, batch)
        found = sums["multiple_choice"], metrics["accuracy"][0], h.weights(batch)["multiple_choice"]
        return jax.numpy.stack(found), h.predict(network, batch)

    found, outputs = zip(*map(jax.device_get, map(run, (padded, packed))))
    logits, batch = outputs[0][:, 0], padded
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    assert logits[1, 2] < -1e8  # the row has two choices
    targets = [int(record["target"]) for record in records]
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    assert found[0][0] == pytest.approx(-np.log(p[range(3), targets]).sum(), rel=1e-5)
    assert found[0][1] == (logits.argmax(-1) == targets).sum() and found[0][2] == 3
    assert [len(one[0]) for one in h.split_outputs(logits[:, None], records)] == [3, 2, 3]
    assert h.baseline.loss([batch | {"eval_mask": batch["label_weights"]}]) == pytest.approx(
        (2 * np.log(3) + np.log(2)) / 3
    )


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match=r"data\.length: 4 leaves no room for two texts"):
        objective(EVERY["bert"]()).check(EVERY["bert"](), 4, VOCABULARY)


@pytest.mark.parity
@pytest.mark.parametrize("name", ["Bert", "Roberta", "DistilBert"])
def test_transformers_has_the_same_loss_and_gradients(name, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from jaxpt import hf

    sizes = {"vocab_size": 40, "max_position_embeddings": 32, "pad_token_id": 0}
    sizes |= (
        {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32} if name == "DistilBert"
        else {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{name}ForMultipleChoice")(getattr(transformers, f"{name}Config")(**sizes)).eval()
    theirs.save_pretrained(tmp_path)
    network, params = hf.load(tmp_path)
    records = [record for record in made() if record["sizes"].all()]
    h = objective(network.config)
    batch = batch_of(h, records, 12)

    def loss(params):
        return h.loss(network.bind(params), batch)[0]["multiple_choice"] / len(records)

    value, gradients = jax.jit(jax.value_and_grad(loss))(params)
    ids = np.asarray(batch["encoder_input_tokens"]).reshape(-1, 3, 12)
    mask = np.asarray(batch["encoder_segment_ids"]).reshape(-1, 3, 12) > 0
    labels = torch.tensor([int(record["target"]) for record in records])
    got = theirs(input_ids=torch.tensor(ids).long(), attention_mask=torch.tensor(mask).long(), labels=labels)
    got.loss.backward()
    np.testing.assert_allclose(value, got.loss.item(), rtol=1e-5)
    np.testing.assert_allclose(h.predict(network.bind(params), batch)[:, 0], got.logits.detach(), atol=1e-5)
    weight = theirs.classifier.weight.grad.numpy()
    mine = np.asarray(gradients["heads"]["choice"]["dense"]["kernel"]).T
    np.testing.assert_allclose(mine, weight, atol=1e-4 * np.abs(weight).max())


RECIPE = """
task: {kind: multiple_choice, text: ctx, choices: endings}
data: {path: TRAIN, validation_path: DEV, length: 24, batch_size: 16, cache_dir: CACHE,
       tokenizer: {kind: wordpiece, vocab_size: 80, lowercase: true}}
optimizer: {kind: adamw, learning_rate: 3e-3, schedule: {kind: constant}}
train: {steps: 30, eval_every: 30, log_every: 10}
model: {kind: bert, vocab_size: 80, layers: 1, embed_dim: 64, heads: 2, mlp_dim: 128, max_positions: 32}
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A recipe's file, beside its rows: the right ending is the good one; there are two to four of them."""
    folder = tmp_path_factory.mktemp("choices")
    rng = np.random.default_rng(0)
    animals = ["dog", "cat", "cow", "bird", "fish", "horse"]

    def row():
        found = rng.choice(animals, rng.integers(2, 5), replace=False).tolist()
        right = int(rng.integers(len(found)))
        endings = [f"the {name} is {'good' if n == right else 'bad'}" for n, name in enumerate(found)]
        return {"ctx": f"see the {found[0]}", "endings": endings, "label": "ABCD"[right]}

    for name, count in (("train", 300), ("dev", 61)):
        lines = "".join(json.dumps(row()) + "\n" for _ in range(count))
        with gzip.open(folder / f"{name}.jsonl.gz", "wt") as file:
            file.write(lines)
    text = RECIPE.replace("TRAIN", str(folder / "train.jsonl.gz")).replace("DEV", str(folder / "dev.jsonl.gz"))
    (folder / "r.yaml").write_text(text.replace("CACHE", str(folder / "cache")))
    return folder / "r.yaml"


@pytest.mark.slow
@pytest.mark.parametrize("packing", [False, True])
def test_a_run_learns_and_predicts(recipe, tmp_path, packing, capsys):
    run, dev = tmp_path / "run", recipe.parent / "dev.jsonl.gz"
    assert main(["train", str(recipe), f"run_dir={run}", f"data.packing={str(packing).lower()}"]) == 0
    assert "most_choices: 4" in (run / "config.yaml").read_text()
    assert main(["predict", str(run), str(dev), "--out", str(tmp_path / "p.jsonl"), "--top-k", "4"]) == 0
    with gzip.open(dev, "rt") as file:
        wanted = [json.loads(line) for line in file]
    found = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    right = [one["predicted_label"] == "ABCD".index(row["label"]) for one, row in zip(found, wanted, strict=True)]
    assert np.mean(right) > 0.9
    assert [one["text"] for one in found] == [row["endings"][one["predicted_label"]] for one, row in zip(found, wanted)]
    said = capsys.readouterr().out
    assert "batches of 16 × 4 choices × 24 tokens" in said and "step of 16 × 4 choices × 24 tokens" in said
    assert [len(one["probabilities"]) for one in found] == [len(row["endings"]) for row in wanted]
    receipt = json.loads((run / "run.json").read_text())
    assert receipt["task"]["accuracy"] == pytest.approx(np.mean(right))
