"""Continued pretraining of a model of transformers: longer texts, an extended vocabulary, every checkpoint."""

import json

import jax
import numpy as np
import pytest

from jaxpt.cli import main
from jaxpt.config import TokenizerConfig, at_phase, model_at
from jaxpt.data import builtin, datasets, tokenizers
from jaxpt.data.tokenizers import extension
from jaxpt.errors import UserError
from jaxpt.evals import heldout
from jaxpt.hf import revisions
from jaxpt.inference import opening
from jaxpt.study import recipes
from jaxpt.train import initial, run_dir, state, vocabularies
from tests import fine_tuning

RECIPE = """
objective: {kind: causal_lm}
data: {length: 16, batch_size: 8, cache_dir: CACHE, validation_fraction: 0.3, path: TEXT, documents: line}
init_from: {path: BASE}
optimizer: {kind: adamw, learning_rate: 1e-3, schedule: {kind: cosine, warmup_steps: 2}}
train:
  steps: 4
  log_every: 1
  eval_every: 4
  eval_on_start: true
  phases:
  - {steps: 2}
  - set:
      data.length: 48
      model.max_positions: 64
      model.rope_scaling: yarn
      model.rope_factor: 4
      model.rope_original_positions: 16
evals: [{kind: heldout}]
checkpoint: {every: 2, save_initial_state: true}
"""
WORDS = ("adenocarcinoma", "carcinoma", "the", "tissue", "of", "lung", "is")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """(directory, a small OLMo 2 of transformers in it, its vocabulary)"""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("continued")
    vocabulary = tokenizers.train(fine_tuning.WORDS * 9, TokenizerConfig(kind="bpe"), 280, path / "base")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = transformers.Olmo2ForCausalLM(
        transformers.Olmo2Config(
            **sizes, vocab_size=300, max_position_embeddings=16, eos_token_id=vocabulary.vocabulary.eos,
            pad_token_id=None, rope_parameters={"rope_type": "default", "rope_theta": 1000.0}, initializer_range=0.3,
        )
    )  # fmt: skip
    model.save_pretrained(path / "base")
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(WORDS, 12)) for _ in range(120)]
    (path / "text.txt").write_text("\n".join(lines) + "\n")
    text = RECIPE.replace("CACHE", str(path / "cache")).replace("TEXT", str(path / "text.txt"))
    (path / "recipe.yaml").write_text(text.replace("BASE", str(path / "base")))
    return path, model, vocabulary


@pytest.fixture(scope="module")
def trained(base):
    """(directory of the run, its recipe)"""
    path, _, _ = base
    assert main(["train", str(path / "recipe.yaml"), f"run_dir={path / 'run'}"]) == 0
    return path / "run", recipes.load(path / "recipe.yaml", [f"run_dir={path / 'run'}"])


def loss_of(model, config, data):
    """Mean loss of a model of transformers on the validation split."""
    torch = pytest.importorskip("torch")
    total = count = 0.0
    for batch in next(iter(heldout.feeds(config, data).values())):
        ids, targets, weights = (
            torch.tensor(np.asarray(batch[f"decoder_{name}"]))
            for name in ("input_tokens", "target_tokens", "loss_weights")
        )
        with torch.no_grad():
            logits = model(ids.long()).logits
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets.long(), reduction="none")
        total, count = total + float((loss * weights).sum()), count + float(weights.sum())
    return total / count


@pytest.mark.slow
@pytest.mark.parity
def test_the_loss_before_the_first_step_is_that_of_transformers(base, trained):
    path, config = trained
    records, _ = run_dir.records(path)
    (measured,) = [
        record["validation/loss"] for record in records if record["step"] == 0 and "validation/loss" in record
    ]
    data = datasets.prepare(config, report=lambda line: None)
    np.testing.assert_allclose(measured, loss_of(base[1], at_phase(config, 0), data), rtol=1e-5)
    assert config.model.kind == "decoder_only" and config.model.norm_position == "after"


@pytest.mark.slow
@pytest.mark.parity
def test_a_phase_scales_the_positions_of_longer_texts(trained, tmp_path):
    """In training and in all that uses a checkpoint of that phase."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    path, config = trained
    assert (model_at(config, 2).rope_scaling, model_at(config, 3).rope_scaling) == ("none", "yarn")
    revisions.export_every(path, tmp_path / "out", report=lambda line: None)
    assert sorted(place.name for place in (tmp_path / "out").iterdir()) == ["step0", "step2", "step4"]
    for step, scaled in (("step2", False), ("step4", True)):
        keys = json.loads((tmp_path / "out" / step / "config.json").read_text())
        assert (keys["rope_parameters"]["rope_type"] == "yarn") == scaled
        assert keys["max_position_embeddings"] == (64 if scaled else 16)
    ids = np.random.default_rng(0).integers(0, 256, (1, 40))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "step4")
    opened = opening.open_model(path)
    bound = opened.network.bind(opened.params)
    logits = bound.output_projection()(bound.decode(ids.astype(np.int32)).hidden)[..., :300]
    with torch.no_grad():
        want = model(torch.tensor(ids)).logits.numpy()
    np.testing.assert_allclose(logits, want, atol=1e-4 * np.abs(want).max())


@pytest.mark.slow
@pytest.mark.parity
def test_every_checkpoint_has_the_facts_of_its_training_state(base, trained, tmp_path):
    path, _ = trained
    lines = []
    revisions.export_every(path, tmp_path, report=lines.append, dtype="float32")
    states = {n: json.loads((tmp_path / f"step{n}" / revisions.FILE).read_text()) for n in (0, 2, 4)}
    assert [states[n]["step"] for n in states] == [0, 2, 4] and len(lines) == 3
    assert states[0]["tokens"] == 0 and states[2]["tokens"] > 0 and states[0]["learning_rate"] is None
    assert states[4]["tokens"] > 3 * states[2]["tokens"], "the second phase has longer texts"
    records, _ = run_dir.records(path)
    logged = {record["step"]: record for record in records if "train/loss" in record}
    assert states[4]["train_loss"] == logged[4]["train/loss"]
    np.testing.assert_allclose(states[2]["learning_rate"], logged[2]["learning_rate"], rtol=1e-6)
    assert states[0]["metrics"].keys() == states[4]["metrics"].keys() >= {"validation/loss"}
    assert states[2]["data"]["tokenizer"] and "jax" in states[2]["environment"]["packages"]
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "step0")
    theirs = base[1].state_dict()
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), theirs[name].numpy())
    revisions.export_every(path, tmp_path, report=lines.append)
    assert lines[3:] == [f"{tmp_path / f'step{n}'}: is there already" for n in (0, 2, 4)]
    with pytest.raises(UserError, match="is one checkpoint; --every wants the run directory"):
        revisions.export_every(path / "checkpoints" / "2", tmp_path)


@pytest.mark.slow
@pytest.mark.parity
def test_rows_of_new_tokens_are_means_of_old_ones(base, tmp_path):
    transformers = pytest.importorskip("transformers")
    path, model, vocabulary = base
    new = [f"data.tokenizer.path={tmp_path / 'words'}", "init_from.vocabulary=mean", f"run_dir={tmp_path / 'run'}"]
    command = ["tokenizer", "extend", str(path / "recipe.yaml"), "--tokens", "24", "--out", str(tmp_path / "words")]
    assert main(command) == 0
    extended = tokenizers.load(tmp_path / "words")
    old, size = vocabulary.vocabulary.size, extended.vocabulary.size
    text = "the adenocarcinoma of the lung"
    assert size == old + 24 and len(extended.encode(text)) < len(vocabulary.encode(text))
    assert extended.decode(extended.encode(text)) == text and extended.vocabulary.eos == vocabulary.vocabulary.eos

    config = recipes.load(path / "recipe.yaml", [*new, 'data.tokenizer.add_tokens=["<ent>"]'])
    assert config.model.vocab_size == max(300, size + 1)
    lines = []
    begun = initial.start(state.setup(config, jax.devices()[:1]), config.init_from, lines.append)
    assert "  vocabulary: 25 new tokens, the row of each the mean of its old pieces' rows" in lines
    theirs = {"token_embed": model.model.embed_tokens.weight, "head": model.lm_head.weight}
    pieces = extension.old_pieces(tokenizers.load(tmp_path / "words", add_tokens=["<ent>"]), vocabulary)
    assert pieces[size] == vocabulary.encode("<ent>") and {len(x) for x in pieces.values()} - {1}
    for name, table in theirs.items():
        (ours,) = jax.tree.leaves(begun.params["model"][name])
        ours, rows = ours.T if name == "head" else ours, table.detach().numpy()
        np.testing.assert_array_equal(ours[:old], rows[:old])
        for token, ids in pieces.items():
            np.testing.assert_allclose(ours[token], rows[ids].mean(axis=0), rtol=1e-6, atol=1e-7)

    assert main(["train", str(path / "recipe.yaml"), *new, "train.steps=1", "train.eval_on_start=false"]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert exported.encode(text, add_special_tokens=False) == extended.encode(text)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] == vocabulary.vocabulary.eos


def test_a_vocabulary_that_is_no_extension_is_refused(tmp_path):
    one, other = (tokenizers.train(builtin.documents()[:9], TokenizerConfig(kind="bpe"), size) for size in (270, 260))
    assert extension.old_pieces(extension.extend(other, ["go went go went"], 1), other)
    with pytest.raises(UserError, match="does not begin with the 260 ids of the one that it is to extend"):
        extension.old_pieces(one, other)
    with pytest.raises(UserError, match="no pair of pieces that comes 2 times"):
        extension.extend(other, [""], 1)
    wordpiece = tokenizers.train(fine_tuning.WORDS * 9, TokenizerConfig(kind="wordpiece"), 60)
    with pytest.raises(UserError, match="a wordpiece vocabulary that is no byte-level BPE cannot be extended"):
        extension.extend(wordpiece, ["text"], 1)


@pytest.mark.parametrize("kind", ["bpe", "sentencepiece"])
def test_tokens_are_found_by_their_pieces(kind, tmp_path):
    """A tokenizer.json decodes "the" and "▁the" to one text; "é" is a letter of GPT-2's vocabulary and a byte."""
    config = TokenizerConfig(kind=kind, extra_ids=2 if kind == "sentencepiece" else None)
    tokenizers.train([*builtin.documents()[:9], *["né é"] * 99], config, 500, tmp_path / "a")
    a, b = (tokenizers.load(tmp_path / "a" / name) for name in (".", "tokenizer.json"))
    ids = range(a.vocabulary.size)
    assert len(set(b.pieces(ids))) == len(ids) > len(set(b.tokens(ids)))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "tokenizer.json").write_bytes((tmp_path / "a" / "tokenizer.json").read_bytes())
    for new, old in (("b", "b"), ("a", "b"), ("b", "a")):
        recipe = recipes.load(
            "configs/smoke/t5_tiny.yaml",
            [f"data.tokenizer.kind={kind}", f"data.tokenizer.path={tmp_path / new}", "data.tokenizer.extra_ids=null",
             f"init_from.path={tmp_path / old}", "init_from.vocabulary=tokens"],
        )  # fmt: skip
        assert vocabularies.rows_by_token(recipe, recipe.init_from).tolist() == [*ids]
        tokenizers.check_same(recipe, tokenizers.load(tmp_path / old), "of the batches")
    extension.check(a, b)


def test_a_vocabulary_without_a_pre_tokenizer_is_extended(tmp_path):
    tokenizers.train(builtin.documents()[:9], TokenizerConfig(kind="bpe"), 260, tmp_path)
    tree = json.loads((tmp_path / "tokenizer.json").read_text())
    tree |= {"pre_tokenizer": None, "normalizer": {"type": "ByteLevel"}}
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "tokenizer.json").write_text(json.dumps(tree))
    base = tokenizers.load(tmp_path / "bare")
    extended = extension.extend(base, ["go went go went"], 2)
    assert len(extended.encode("go went")) < len(base.encode("go went"))
