"""A run with `data.tokenizer.add_tokens`: its vocabulary and its table grow, and what was learnt stays."""

import io
import json
import sys

import jax
import numpy as np
import pytest

import jaxpt
from jaxpt.cli import main
from jaxpt.config import build, dump
from jaxpt.data import chat_template, checks, datasets, tokenizers
from jaxpt.errors import UserError
from jaxpt.study import recipes
from jaxpt.train import initial, state, weights
from tests import fine_tuning

BASE = """
model: {kind: gpt2, vocab_size: 300, layers: 1, embed_dim: 32, heads: 2, max_positions: 96}
objective: {kind: causal_lm}
data: {tokenizer: {kind: bpe, characters: 100000}, length: 64, batch_size: 8, cache_dir: CACHE}
optimizer: {kind: adamw, learning_rate: 1e-3, schedule: {kind: constant}}
train: {steps: 1}
evals: []
"""
TUNE = """
task: {kind: dialogue, prompt: question, answer: answer}
objective: {kind: dialogue, template: chatml}
data: {path: FILE, validation_fraction: 0.1, length: 64, batch_size: 8, packing: true, cache_dir: CACHE,
       tokenizer: {add_tokens: ["<|im_start|>", "<|im_end|>"]}}
optimizer: {kind: adamw, learning_rate: 1e-2, schedule: {kind: constant}}
train: {steps: 60, eval_every: 60, log_every: 60}
evals: []
"""


def test_the_table_grows_with_the_vocabulary(tmp_path):
    """The model of a recipe, of a run and of its tokenizer; a second reading grows nothing more."""
    tokens = ["[START]", "[SEP]", "[EXTRACT]"]
    config = fine_tuning.recipe(tmp_path, "model.vocab_size=40")
    path = config.data.tokenizer.path
    size = tokenizers.load(path).vocabulary.size
    given = f"data.tokenizer.add_tokens={json.dumps(tokens)}"
    config = fine_tuning.recipe(tmp_path, "model.vocab_size=40", given)
    assert size == 40 and config.model.vocab_size == 42
    assert recipes.with_room(dump(config))["model"]["vocab_size"] == 42
    padded = fine_tuning.recipe(tmp_path, "model.vocab_size=64", given)
    assert padded.model.vocab_size == 64  # room in the padding
    lines = []
    data = datasets.prepare(config, report=lines.append)
    assert dict(data.vocabulary.added) == {"[START]": 40, "[SEP]": 3, "[EXTRACT]": 41}
    said = " ".join(lines)
    assert "[START] is a new token, id 40" in said and "[SEP] is there already, id 3" in said
    assert datasets.prepare(config, report=lines.append).tokenizer.digest() == data.tokenizer.digest()
    more = build(dump(config) | {"data": dump(config)["data"] | {"tokenizer": {"kind": "wordpiece", "lowercase": True,
                 "path": path, "add_tokens": ["[NEW]"]}}})  # fmt: skip
    with pytest.raises(UserError, match=r"has no token '\[NEW\]' of data.tokenizer.add_tokens"):
        datasets.prepare(more, report=lines.append)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ('["<a>", "<a>"]', 'data.tokenizer.add_tokens: has "<a>" twice'),
        ('["<a>", ""]', 'data.tokenizer.add_tokens: wants tokens without white space around them, got ""'),
        ('["<a> "]', "wants tokens without white space around them"),
    ],
)
def test_mistakes_are_one_line(tokens, words, tmp_path):
    with pytest.raises(UserError) as error:
        fine_tuning.recipe(tmp_path, f"data.tokenizer.add_tokens={tokens}")
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_trained_vocabulary_leaves_room():
    tree = {
        "model": {"kind": "gpt2", "vocab_size": 300, "layers": 1, "embed_dim": 32, "heads": 2, "max_positions": 64},
        "objective": {"kind": "causal_lm"},
        "data": {"tokenizer": {"kind": "bpe", "add_tokens": ["<a>", "<b>"]}, "length": 32},
    }
    config = build(tree)
    assert checks.trained_size(config) == 298
    assert tokenizers.planned(config.data.tokenizer, 298).added == (("<a>", 298), ("<b>", 299))
    tree["data"]["tokenizer"]["vocab_size"] = 299
    with pytest.raises(UserError, match=r"299 and 2 add_tokens is more than model.vocab_size, 300"):
        checks.trained_size(build(tree))


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A base model, and the ChatML model that it becomes: half of the steps."""
    path = tmp_path_factory.mktemp("chatml")
    rng = np.random.default_rng(0)
    rows = [{"question": f"Is it {n}?", "answer": "yes"} for n in rng.integers(100, 999, 200).tolist()]
    (path / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in (("base", BASE), ("tune", TUNE)):
        text = text.replace("CACHE", str(path / "cache")).replace("FILE", str(path / "qa.jsonl"))
        (path / f"{name}.yaml").write_text(text)
    assert main(["train", str(path / "base.yaml"), f"run_dir={path / 'base'}"]) == 0
    tune = [str(path / "tune.yaml"), f"run_dir={path / 'run'}", f"init_from.path={path / 'base'}"]
    assert main(["train", *tune, "train.steps=30"]) == 0
    return path, recipes.load(tune[0], tune[1:])


@pytest.fixture(scope="module")
def tuned(begun):
    """The other half, in a second sitting."""
    path, config = begun
    assert main(["train", str(path / "run"), f"train.steps={config.train.steps}"]) == 0
    return begun


@pytest.mark.slow
def test_a_base_model_learns_chatml(tuned, capsys, monkeypatch):
    """Old rows begin as they were; the loss counts answers with <|im_end|>; a chat ends there."""
    path, config = tuned
    base = tokenizers.load(path / "base" / "tokenizer")
    size = base.vocabulary.size
    assert config.model.vocab_size == size + 2
    data = datasets.prepare(config, report=lambda line: None)
    assert dict(data.vocabulary.added) == {"<|im_start|>": size, "<|im_end|>": size + 1}
    batch = next(data.train.batches(start=0))
    counted = batch["decoder_target_tokens"][batch["decoder_loss_weights"] > 0]
    answer = [*base.encode("yes"), size + 1]
    assert counted.tolist() == answer * (len(counted) // len(answer))

    lines = []
    start = initial.start(state.setup(config), config.init_from, lines.append)
    (table,) = [x for x in jax.tree.leaves(start.params) if x.shape == (384, 32)]
    old = weights.Saved(path / "base", 1)
    (before,) = [x for _, x in old.items() if x.shape == (384, 32)]
    np.testing.assert_array_equal(table[:size], before[:size])
    assert 0.01 < np.std(table[size : size + 2]) < 0.03
    assert f"rows 0 to {size - 1} as they are, {size} to {size + 1} new" in " ".join(lines)

    monkeypatch.setattr(sys, "stdin", io.StringIO("Is it 123?\n"))
    assert main(["chat", str(path / "run"), "--max-new-tokens", "8"]) == 0
    assert capsys.readouterr().out.split() == ["yes"]


@pytest.mark.slow
def test_an_adapter_alone_lacks_new_rows(begun, tmp_path, capsys):
    path, _ = begun
    lora = [f"run_dir={tmp_path / 'lora'}", "train.lora={rank: 2}", "train.steps=1"]
    assert main(["train", str(path / "tune.yaml"), f"init_from.path={path / 'base'}", *lora]) == 0
    assert "the new rows stay as they are drawn" in " ".join(capsys.readouterr().out.split())
    assert main(["export", str(tmp_path / "lora"), str(tmp_path / "out"), "--adapter"]) == 2
    assert "the adapter's base has no row for <|im_start|>" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "lora"), str(tmp_path / "out")]) == 0


@pytest.mark.slow
@pytest.mark.parity
def test_transformers_has_its_ids_and_logits(begun, tmp_path):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    path, config = begun
    assert main(["export", str(path / "run"), str(tmp_path / "out")]) == 0
    theirs, model = (
        getattr(transformers, name).from_pretrained(tmp_path / "out")
        for name in ("AutoTokenizer", "AutoModelForCausalLM")
    )
    ours = tokenizers.load(path / "run" / "tokenizer")
    messages = [{"role": "user", "content": "Is it 123?"}]
    text = chat_template.load(ours).render(messages)
    ids = ours.encode(text, special=True)
    assert theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False) == ids
    assert theirs.decode(ids) == ours.decode(ids) == text and len(theirs) == ours.vocabulary.size
    assert model.get_input_embeddings().weight.shape[0] == config.model.vocab_size
    loaded = jaxpt.load(path / "run", batch_size=1)
    bound = loaded.network.bind(loaded.params)
    hidden = bound.decode(np.array([ids], np.int32)).hidden
    logits = bound.output_projection()(bound.lm_states(hidden))[..., : config.model.vocab_size]
    with torch.no_grad():
        want = model(torch.tensor([ids])).logits.numpy()
    np.testing.assert_allclose(logits, want, atol=1e-4 * np.abs(want).max())
    again = jaxpt.load(tmp_path / "out", batch_size=1)
    assert again.tokenizer.encode(text, special=True) == ids
