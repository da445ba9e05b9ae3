"""`jaxpt import` of fine-tuned classes: a run with a task, that predicts, evaluates, exports and trains at once."""

import json

import jax
import numpy as np
import pytest

from jaxpt import config as configs
from jaxpt import hf
from jaxpt.cli import main
from jaxpt.errors import UserError
from jaxpt.hf import convert, directory, files, imported
from jaxpt.inference.predict import predict
from jaxpt.models.heads import classes
from jaxpt.models.network import Network
from jaxpt.train import weights
from jaxpt.train.loop import train
from tests import fine_tuning, grids
from tests.data.tokenizers.test_tokenizers import by_spm, roberta
from tests.hf.parity import randomise
from tests.hf.test_directory import AS_READ, edit, fresh
from tests.hf.test_tasks_parity import CASES
from tests.models.helpers import EVERY, bert


def quiet(line):
    pass


def saved(path, head, outputs, **more):
    """A BERT with a head for fine-tuning and a vocabulary, in Hugging Face's form."""
    config = bert(vocab_size=64, layers=1, dtype="auto")  # as it is read
    hf.save(path, *fresh(Network(config.build(), classes.declare(config, head, outputs))), **more)
    fine_tuning.vocabulary(path)
    return path


KINDS = (
    ("classes", 3, {"labels": ("no", "maybe", "yes")}, {"kind": "classification", "labels": ["no", "maybe", "yes"]}),
    ("classes", 2, {}, {"kind": "classification", "labels": ["LABEL_0", "LABEL_1"]}),
    (
        "classes", 2, {"labels": ("sad", "odd"), "problem": "multi_label_classification"},
        {"kind": "multi_label", "labels": ["sad", "odd"]},
    ),
    ("classes", 1, {"problem": "regression"}, {"kind": "regression"}),
    ("tags", 3, {"labels": ("O", "I-X", "B-X")}, {"kind": "tagging", "labels": ["O", "I-X", "B-X"]}),
    ("span", 2, {}, {"kind": "question_answering"}),
    ("choice", 1, {}, {"kind": "multiple_choice", "most_choices": 4}),
)  # fmt: skip


@pytest.mark.parametrize(("head", "outputs", "more", "task"), KINDS)
def test_the_task_is_that_of_the_class(head, outputs, more, task, tmp_path):
    source = directory.open_directory(saved(tmp_path, head, outputs, **more))
    assert imported.task_of(source) == task
    config = imported.recipe(source.network, {"kind": "wordpiece"}, "runs/x", task=task)
    assert set(config.objective.heads(config.model)) == set(source.network.heads)
    assert config.evals and config.checkpoint.best_metric.startswith("task/")


def test_a_problem_that_transformers_has_not(tmp_path):
    edit(saved(tmp_path, "classes", 2), problem_type="ranking")
    with pytest.raises(
        UserError, match=r"problem_type: 'ranking' is not supported, only single_label_classification, "
    ):
        imported.task_of(directory.open_directory(tmp_path))


def test_a_regression_of_several_numbers_is_refused(tmp_path, capsys):
    saved(tmp_path / "hf", "classes", 3, problem="regression")
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert "hf: config.json: num_labels: 3 with problem_type regression is not supported, only 1" in message
    assert len(message.splitlines()) == 1 and [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_a_class_that_no_run_has_is_refused(tmp_path, capsys):
    """A span has a first and a last token."""
    saved(tmp_path / "hf", "span", 3)
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert "weights: a question_answering model has other parameters than the imported one" in message
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_two_labels_of_one_name_are_told(tmp_path, capsys):
    edit(saved(tmp_path / "hf", "classes", 2), id2label={"0": "same", "1": "same"})
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert "same" in message and "labels" in message and len(message.splitlines()) == 1, message
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_a_model_without_a_head_gets_the_one_of_its_objective_when_told_so(tmp_path, capsys):
    """`BertModel` says nothing about masked words: that head is new."""
    config = bert(vocab_size=64, layers=1, dtype="auto")
    network, params = fresh(Network(config.build(), {}))
    hf.save(tmp_path / "hf", network, params)
    command = ["import", str(tmp_path / "hf"), str(tmp_path / "run")]
    assert main(command) == 2
    message = capsys.readouterr().err
    assert "weights: cls.predictions." in message and "are missing" in message and len(message.splitlines()) == 1
    assert main([*command, "--partial"]) == 0
    assert "initialised at random: heads/masked_lm/" in capsys.readouterr().out
    assert configs.load(tmp_path / "run").objective.kind == "masked_lm"
    taken = weights.read(tmp_path / "run", 0)
    assert set(taken["heads"]) == {"masked_lm"}
    jax.tree.map(np.testing.assert_array_equal, params["model"], taken["model"])


def test_tensors_that_read_images_are_counted(tmp_path, capsys):
    """Of a Gemma 3 of texts and images the text model is read: the same run as of that model alone."""
    network, params = fresh(EVERY["decoder_only"](**AS_READ))
    hf.save(tmp_path / "text", network, params)
    keys = json.loads((tmp_path / "text" / "config.json").read_text())
    assert keys["model_type"] == "gemma3_text"
    (tmp_path / "hf").mkdir()
    whole = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": keys}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(whole))
    tensors = {f"language_model.{name}": x for name, x in files.Tensors(tmp_path / "text").items()}
    images = ("vision_tower.a.weight", "vision_tower.b.bias", "multi_modal_projector.c.weight")
    tensors |= dict.fromkeys(images, np.ones((2, 3), np.float32))
    files.write(tmp_path / "hf", {name: (x.shape, x.dtype) for name, x in tensors.items()}, tensors.items())
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "run")]) == 0
    assert "skipped, not of the text model: 3 tensors that read images" in capsys.readouterr().out
    jax.tree.map(np.testing.assert_array_equal, params, weights.read(tmp_path / "run", 0))


def test_an_adapter_says_its_base_or_is_told_it(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(UserError, match=rf"^{tmp_path}: does not say its base model; name it with --base DIR$"):
        imported.base_of(tmp_path, None)
    (tmp_path / "base").mkdir()
    assert imported.base_of(tmp_path, tmp_path / "base") == tmp_path / "base"


@pytest.mark.parametrize(
    ("named", "revision", "wanted"),
    [
        ("lab/tiny", "step3000", "lab/tiny@step3000"),
        ("lab/tiny", "main", "lab/tiny"),
        ("lab/tiny", None, "lab/tiny"),
        ("lab/tiny@b1", "step3000", "lab/tiny@b1"),  # as jaxpt wrote it before
        ("downloads", "step3000", "downloads"),
    ],
)
def test_an_adapter_says_the_revision_of_its_base(named, revision, wanted, tmp_path, monkeypatch):
    settings = {"peft_type": "LORA", "base_model_name_or_path": named, "revision": revision}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    asked = []
    monkeypatch.setattr(imported.hub, "local", lambda path: asked.append(path) or tmp_path)
    monkeypatch.chdir(tmp_path)
    imported.base_of(tmp_path, None)
    imported.base_of(tmp_path, "other")
    assert asked == [wanted, "other"]


def test_there_and_back(tmp_path):
    labels = ("no", "maybe", "yes")
    saved(tmp_path / "hf", "classes", 3, labels=labels)
    overrides = ["task.text=sentence", "task.pair=other", "data.length=24"]
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "run"), *overrides]) == 0
    config = configs.load(tmp_path / "run")
    assert (config.task.text, config.task.pair, config.task.labels) == ("sentence", "other", labels)
    assert config.data.length == 24
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    before, after = (dict(files.Tensors(tmp_path / side)) for side in ("hf", "out"))
    assert before.keys() == after.keys()
    for name, x in before.items():
        np.testing.assert_array_equal(after[name], x)
    before, after = (json.loads((tmp_path / side / "config.json").read_text()) for side in ("hf", "out"))
    new = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    assert after == before | new


@pytest.mark.parametrize("token", ["[PAD]", None])
def test_padding_of_a_decoder_is_the_tokenizers(token, tmp_path, capsys):
    """Where config.json names other ids alone; a vocabulary may have none, and its first token is none then."""
    config = EVERY["gpt2"](vocab_size=64, layers=1, **AS_READ)
    hf.save(tmp_path / "hf", *fresh(directory.families()["gpt2"].network(config, ("classes",), 2)))
    edit(tmp_path / "hf", eos_token_id=3)
    fine_tuning.vocabulary(tmp_path / "hf")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "pad_token": token}
    (tmp_path / "hf" / "tokenizer_config.json").write_text(json.dumps(settings))
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    keys = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (keys["pad_token_id"], keys["bos_token_id"], keys["eos_token_id"]) == (0 if token else None, None, 3)
    assert ("takes one text at a time" in capsys.readouterr().out) == (token is None)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.labels=[a,b]", r"^command line: task.labels=\[a,b\]: the model has other parameters than the imported"),
        ("task.texts=a", r"^command line: unknown key task.texts of kind classification; did you mean task.text"),
        ("text", r"^command line: 'text': wants key=value"),
    ],
)
def test_overrides_that_do_not_fit(override, message, tmp_path):
    saved(tmp_path / "hf", "classes", 3)
    with pytest.raises(UserError, match=message):
        convert.import_weights(tmp_path / "hf", tmp_path / "run", overrides=[override], report=quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


@pytest.mark.slow
def test_an_imported_class_evaluates_and_trains_on(tmp_path):
    saved(tmp_path / "hf", "classes", 2, labels=("good", "bad"))
    convert.import_weights(tmp_path / "hf", tmp_path / "imported", report=quiet)
    path = fine_tuning.write(tmp_path / "rows.jsonl", fine_tuning.rows(48))
    assert main(["eval", str(tmp_path / "imported"), f"data.path={path}", "data.length=32"]) == 0
    source = {"path": str(tmp_path / "imported")}
    task = {"kind": "classification", "labels": ["good", "bad"]}
    assert train(fine_tuning.recipe(tmp_path, model={"layers": 1, "embed_dim": 24, "heads": 3, "mlp_dim": 40},
                                    task=task, init_from=source)) == 0  # fmt: skip
    start, end = (dict(weights.Saved(tmp_path / run, step)) for run, step in (("imported", 0), ("run", 4)))
    assert start.keys() == end.keys()
    assert np.abs(start["heads/classes/dense/kernel"] - end["heads/classes/dense/kernel"]).max() < 0.02


# ---- beside transformers' pipelines ---------------------------------------------------------------------------------

TEXTS = ("the film is good", "a dull plot and so very bad", "not fine")
LABELS = {"classes": ("no", "maybe", "yes"), "tags": ("O", "B-X", "I-X")}


def corpus():
    return ["\n".join(row["text"] for row in fine_tuning.rows(200, seed=n)) for n in range(12)]


def word_pieces(path, _):
    fine_tuning.vocabulary(path)
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return {"pad_token_id": 0}


def fairseq(path, name):
    """RoBERTa's and BART's vocabulary."""
    roberta(path, corpus())
    settings = {"tokenizer_class": f"{'Bart' if name == 'bart' else 'Roberta'}Tokenizer"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}


def bytes_of_gpt2(path, _):
    from jaxpt.data import tokenizers

    tokenizers.train(corpus(), configs.TokenizerConfig(kind="bpe"), 300, path)
    end = json.loads((path / "vocab.json").read_text("utf-8"))["<|endoftext|>"]
    return {"pad_token_id": end, "bos_token_id": end, "eos_token_id": end}


def pieces_of_deberta(path, _):
    names = {f"{name}_piece": f"[{name.upper()}]" for name in ("pad", "unk")}
    names |= {"bos_piece": "[CLS]", "eos_piece": "[SEP]"}
    ids = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
    (path / "spm.model").write_bytes(by_spm(["\n".join(corpus())], vocab_size=80, **names, **ids))
    (path / "tokenizer_config.json").write_text('{"tokenizer_class": "DebertaV2Tokenizer"}')
    return {"pad_token_id": 0}


def pieces_of_xlnet(path, _):
    symbols = ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
    (path / "spiece.model").write_bytes(by_spm(["\n".join(corpus())], vocab_size=80, control_symbols=symbols))
    (path / "tokenizer_config.json").write_text('{"tokenizer_class": "XLNetTokenizer"}')
    return {"pad_token_id": 5}


VOCABULARIES = {
    "bert": word_pieces, "electra": word_pieces, "roberta": fairseq, "bart": fairseq, "gpt2": bytes_of_gpt2,
    "deberta-v3": pieces_of_deberta, "xlnet": pieces_of_xlnet,
}  # fmt: skip


def having(head):
    return [name for name in VOCABULARIES if head in CASES[name][3]]


def theirs(path, name, head):
    """A class of transformers with random weights and its tokenizer, saved."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    path.mkdir()
    ids = VOCABULARIES[name](path, name)
    _, model_type, options, _ = CASES[name]
    config = transformers.CONFIG_MAPPING[model_type](**{**options, "vocab_size": 320, **ids})
    if head in LABELS:
        config.id2label = dict(enumerate(LABELS[head]))
        config.label2id = {label: i for i, label in enumerate(LABELS[head])}
    model = randomise(getattr(transformers, directory.families()[model_type].tasks[head].name)(config), 0)
    model.save_pretrained(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    if name == "xlnet":  # transformers 5 makes these only when asked; before, they were given to the model, as XLNet's
        tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return model, tokenizer


def answers(path, made):
    """What `jaxpt predict` says of rows, by the imported directory."""
    convert.import_weights(path / "hf", path / "run", report=quiet)
    predict(str(path / "run"), fine_tuning.write(path / "rows.jsonl", made), str(path / "p.jsonl"))
    return [json.loads(line) for line in (path / "p.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("name", grids.cases(VOCABULARIES, "bert", "bart", "gpt2", "xlnet"))
def test_labels_of_texts_are_those_of_the_pipeline(name, tmp_path):
    from transformers import pipeline

    model, tokenizer = theirs(tmp_path / "hf", name, "classes")
    found = answers(tmp_path, [{"text": text} for text in TEXTS])
    classify = pipeline("text-classification", model, tokenizer=tokenizer)
    for one, text in zip(found, TEXTS, strict=True):
        wanted = {x["label"]: x["score"] for x in classify(text, top_k=None)}
        assert one["label"] == max(wanted, key=wanted.get)
        assert one["probabilities"] == pytest.approx(wanted, abs=1e-5)
    convert.export(tmp_path / "run", tmp_path / "out", report=quiet)
    again, info = type(model).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()), info
    state = again.state_dict()
    assert all(tensor.equal(state[key]) for key, tensor in model.state_dict().items())
    assert again.config.id2label == model.config.id2label
    assert tokenizer(TEXTS[0])["input_ids"] == type(tokenizer).from_pretrained(tmp_path / "out")(TEXTS[0])["input_ids"]


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("name", grids.cases(having("tags"), "roberta", "deberta-v3"))
def test_tags_of_words_are_those_of_the_pipeline(name, tmp_path):
    """The pipeline scores pieces; a word's tag is its first piece's."""
    from transformers import pipeline

    model, tokenizer = theirs(tmp_path / "hf", name, "tags")
    found = answers(tmp_path, [{"tokens": text.split()} for text in TEXTS])
    tag = pipeline("token-classification", model, tokenizer=tokenizer, ignore_labels=[])
    for one, text in zip(found, TEXTS, strict=True):
        pieces = tag(text)
        is_first = [
            not n or not piece["word"].startswith("##") if VOCABULARIES[name] is word_pieces
            else not n or piece["word"][0] in "▁Ġ" for n, piece in enumerate(pieces)
        ]  # fmt: skip
        first = [piece for piece, begins in zip(pieces, is_first, strict=True) if begins]
        assert one["tags"] == [piece["entity"] for piece in first]
        np.testing.assert_allclose(one["probabilities"], [x["score"] for x in first], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize(
    "name",
    grids.cases([name for name in VOCABULARIES if name != "gpt2"], "bert", "xlnet"),  # GPT-2 has no layout of pairs
)
def test_answers_are_the_best_spans_of_the_class(name, tmp_path):
    """transformers 5 has no pipeline for this class: the best span among its logits, by hand."""
    import torch

    model, tokenizer = theirs(tmp_path / "hf", name, "span")
    question, context = "is bad", "the film is good and the plot is dull"
    (found,) = answers(tmp_path, [{"question": question, "context": context}])
    pair = (context, question) if name == "xlnet" else (question, context)  # transformers' run_qa.py: left padding
    given = tokenizer(*pair, return_tensors="pt", return_offsets_mapping=True)
    places, of = given.pop("offset_mapping")[0].tolist(), given.sequence_ids(0)
    with torch.no_grad():
        logits = model(**given)
    at = [n for n, side in enumerate(of) if side == pair.index(context)]
    scores = {
        (i, j): float(logits.start_logits[0, i] + logits.end_logits[0, j]) for i in at for j in at if 0 <= j - i < 30
    }
    i, j = max(scores, key=scores.get)
    assert found["answer"] == context[places[i][0] : places[j][1]].strip()


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("name", grids.cases(having("choice"), "roberta", "xlnet"))
def test_choices_are_those_of_the_class(name, tmp_path):
    import torch

    model, tokenizer = theirs(tmp_path / "hf", name, "choice")
    text, choices = "the plot", ["is good and fine", "is bad", "is not so very dull"]
    (found,) = answers(tmp_path, [{"text": text, "choices": choices}])
    given = tokenizer([text] * 3, choices, return_tensors="pt", padding=True)
    with torch.no_grad():
        wanted = model(**{key: x[None] for key, x in given.items()}).logits[0].softmax(-1).tolist()
    assert [found["probabilities"][str(n)] for n in range(3)] == pytest.approx(wanted, abs=1e-5)
