"""Data that teach nothing are said at the start: real recipes on such texts, and on others nothing."""

import numpy as np
import pytest
import yaml

from jaxpt import cli
from jaxpt.data import datasets
from jaxpt.data.warnings import check_ids, check_weights, of_batch, of_packing
from jaxpt.errors import UserError
from jaxpt.objectives.bart import Bart
from jaxpt.objectives.causal_lm import CausalLM
from jaxpt.objectives.masked_lm import MaskedLM
from tests import families

RANDOM = np.random.default_rng(0)
SENTENCES = [f"Sentence {i} speaks of {w}." for i in range(60) for w in ("cats", "dogs", "mice", "birds")]
TEXTS = {
    "lines": "\n".join(SENTENCES),
    "documents": "\n".join(" ".join(SENTENCES[i : i + 6]) for i in range(0, len(SENTENCES), 3)),
    "no words": "\n".join("".join(RANDOM.choice(list("acgt"), 300)) for _ in range(120)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for name, text in TEXTS.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def config(folder, family, text, objective, **data):
    settings = {"path": str(folder / f"{text}.txt"), "cache_dir": str(folder / "cache"), "validation_fraction": 0.15}
    model = {"vocab_size": 300, "layers": 1}
    data = {**settings, "length": 32, "batch_size": 8, **data}
    return families.config(family, model=model, objective=objective, data=data)


def warned(*args, **data):
    lines = []
    datasets.prepare(config(*args, **data), report=lines.append, workers=1)
    return [line.removeprefix("warning: ") for line in lines if line.startswith("warning: ")]


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["next_sentence", "sentence_order"])
def test_labels_of_one_class(folder, loss):
    (line,) = warned(folder, "bert", "lines", {"dupe_factor": 2, "next_sentence": False, loss: True})
    share, said = line.split(" ", 1)
    assert 97 < float(share.rstrip("%")) <= 100 and said.startswith(f"of the labels of {loss} looked at are 1: ")
    assert "data.documents=blank_line" in line and line.endswith(f"raise data.length, or set objective.{loss}=false")


@pytest.mark.slow
def test_pairs_of_longer_documents_are_fine(folder):
    for loss in ("next_sentence", "sentence_order"):
        assert warned(folder, "bert", "documents", {"dupe_factor": 2, "next_sentence": False, loss: True}) == []


@pytest.mark.slow
def test_texts_whose_inputs_equal_their_targets(folder):
    tokenizer = {"kind": "sentencepiece", "extra_ids": 2}
    (line,) = warned(folder, "t5", "no words", {"kind": "bart"}, tokenizer=tokenizer)
    assert "of the texts looked at teach nothing: inputs equal targets" in line
    assert float(line.split("%")[0]) > 50
    by_token = {"kind": "bart", "mask_length": "subword"}  # what the line says helps
    assert "objective.mask_length=subword" in line
    assert warned(folder, "t5", "no words", by_token, tokenizer=tokenizer) == []
    assert warned(folder, "t5", "documents", {"kind": "bart"}, tokenizer=tokenizer) == []


@pytest.mark.slow
def test_each_task_of_a_mixture_is_looked_at_by_itself(folder):
    path = {name: str(folder / f"{name}.txt") for name in TEXTS}
    tasks = [{"name": n, "path": path[x], "validation_fraction": 0.15} for n, x in (("a", "documents"), ("b", "lines"))]
    lines = warned(folder, "bert", "lines", {"dupe_factor": 2}, path=None, validation_fraction=0.02, mixture=tasks)
    assert len(lines) == 1 and lines[0].startswith("b: ") and "next_sentence" in lines[0]


@pytest.mark.slow
def test_packing_without_effect(folder):
    (line,) = warned(folder, "gpt2", "documents", {}, packing=True)
    assert line.startswith("data.packing has no effect: ") and "set objective.join_documents=false" in line
    assert of_packing(CausalLM(join_documents=False), 1000, 980) == []
    (full,) = of_packing(CausalLM(join_documents=False), 1000, 998)
    assert full.endswith("1,000 records in 998 rows: each record fills its row; leave it out")


@pytest.mark.slow
def test_packing_that_has_one_is_not_warned_of(folder):
    assert warned(folder, "gpt2", "documents", {}) == []
    assert warned(folder, "gpt2", "documents", {"join_documents": False}, packing=True, length=64) == []


@pytest.fixture(scope="module")
def masked(folder):
    """A batch of masked texts."""
    settings = config(folder, "bert", "documents", {"next_sentence": False})
    return datasets.prepare(settings, workers=1).train.rows(np.arange(40))


@pytest.mark.parametrize("kind", ["masked_lm", "replaced_token"])
def test_other_objectives_are_not_warned_of(masked, kind):
    """The labels of replaced tokens are few by construction."""
    batch = masked
    objective = families.config("bert", objective={"kind": kind, "next_sentence": False}).objective
    assert of_batch(objective.data_spec(32), batch) == []
    hidden = batch | {"masked_weights": np.zeros_like(batch["masked_weights"])}
    (line,) = of_batch(objective.data_spec(32), hidden)
    assert line.startswith("100.0% of the texts looked at teach nothing: no target is masked or replaced; raise")
    assert "objective.unit=piece" in of_batch(MaskedLM(unit="word", next_sentence=False).data_spec(32), hidden)[0]
    shown = np.take_along_axis(batch["encoder_input_tokens"], batch["masked_positions"], axis=1)
    assert of_batch(objective.data_spec(32), batch | {"masked_targets": shown}) == [line]
    assert of_batch(CausalLM().data_spec(32), {"decoder_input_tokens": np.ones([40, 4])}) == []


def test_texts_that_share_a_row_are_told_apart():
    """Of three texts two are copies; few texts are no sign."""
    inputs = np.array([[5, 6, 7, 8, 8, 9, 0]])
    targets = np.array([[5, 6, 7, 8, 9, 9, 0]])
    batch = {"encoder_input_tokens": inputs, "decoder_target_tokens": targets}
    batch |= dict.fromkeys(("encoder_segment_ids", "decoder_segment_ids"), np.array([[1, 1, 2, 2, 3, 3, 0]]))
    (is_copy,) = Bart().data_spec(32).untrainable_examples(batch).values()
    assert is_copy.tolist() == [True, True, False]
    assert of_batch(Bart().data_spec(32), batch) == []
    (line,) = of_batch(Bart().data_spec(32), {name: np.repeat(x, 20, axis=0) for name, x in batch.items()})
    assert line.startswith("66.7% of the texts")


def recipe(folder, tmp_path):
    path = tmp_path / "recipe.yaml"
    tree = config(folder, "gpt2", "documents", {}, packing=True).model_dump(mode="json", exclude_unset=True)
    path.write_text(yaml.safe_dump(tree))
    return str(path)


def test_inspect_says_it(folder, tmp_path, capsys):
    assert cli.main(["inspect", recipe(folder, tmp_path), "-n", "1"]) == 0
    assert "warning: data.packing has no effect" in capsys.readouterr().err


@pytest.mark.slow
def test_training_says_it_before_the_first_step(folder, tmp_path, capsys):
    assert cli.main(["train", recipe(folder, tmp_path), f"run_dir={tmp_path}/run", "train.steps=1"]) == 0
    said = capsys.readouterr().out
    assert 0 < said.index("warning: data.packing has no effect") < said.index("step 1/1")


@pytest.mark.parametrize("wrong", [300, -1])
def test_ids_that_the_vocabulary_does_not_have_are_refused(wrong):
    ids = np.array([[0, 299], [7, 8]])
    check_ids({"decoder_input_tokens": ids, "masked_positions": ids + 300}, 300)
    with pytest.raises(UserError, match=f"decoder_input_tokens: .* give the id {wrong}, the vocabulary has 300"):
        check_ids({"decoder_input_tokens": np.where(ids == 7, wrong, ids)}, 300)


def test_rows_without_a_target_are_refused(masked):
    """The loss would be 0 at every step, and the run would end with exit code 0."""
    check_weights(masked, "data")
    nothing = {name: np.zeros_like(values) for name, values in masked.items()}
    with pytest.raises(
        UserError, match=r"data/train: .* make empty records: masked_weights are 0 in all 40 rows looked"
    ):
        check_weights(nothing, "data")
    with pytest.raises(UserError, match=r"data/train: masked_weights are 0 in all 40 rows looked at"):
        check_weights(masked | {"masked_weights": nothing["masked_weights"]}, "data")
    check_weights(nothing | {"next_sentence_weights": np.ones(40)}, "data")
    check_weights({"decoder_input_tokens": np.zeros([40, 4])}, "data")
