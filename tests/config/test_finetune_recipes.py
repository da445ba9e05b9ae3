"""The recipes of configs/finetune: they load over any model of their family, with the settings of the table."""

import re
from pathlib import Path

import pytest
import yaml

from jaxpt.config import build
from jaxpt.data.labelled.files import RowFile
from jaxpt.metrics.text_tasks import TASKS
from jaxpt.objectives.labelled import GPT1_TOKENS
from jaxpt.study import recipes
from tests.config import settings

ROOT = Path(__file__).parents[2] / "configs/finetune"
SHARED = (
    "smoke",
    "glue",
    "super_glue",
    "squad",
    "conll2003",
    "tagging",
    "cove",
    "dialogue",
    "ulmfit",  # tests/inference/test_ulmfit.py
    "defaults.yaml",
    "small_batch.yaml",
)
RECIPES = {
    f"{path.parent.name}/{path.stem}": path
    for path in sorted(ROOT.glob("*/*.yaml"))
    if path.parent.name not in SHARED and path.name not in SHARED
}
SETTINGS = {row["recipe"]: row for row in settings.read(ROOT / "settings.csv")}

SMALL = {"vocab_size": 128, "layers": 2, "embed_dim": 16, "heads": 2, "mlp_dim": 32, "max_positions": 1024}
FAMILIES = {
    "albert": ("bert", "sentencepiece"), "bart": ("bart", "bpe"), "bert": ("bert", "wordpiece"),
    "deberta": ("deberta", "sentencepiece"), "electra": ("bert", "wordpiece"), "gpt": ("gpt", "bpe"),
    "modernbert": ("modernbert", "bpe"), "roberta": ("roberta", "bpe"), "t5": ("t5", "sentencepiece"),
    "xlnet": ("xlnet", "sentencepiece"),
}  # fmt: skip
"""Kinds of model and tokenizer of each folder's family."""
RELATIVE = ("t5", "xlnet")
"""Models without absolute positions."""


def is_mixture(name):
    """Several tasks: files are in data.mixture."""
    return name.endswith("_mixture")


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Loads a recipe over a small pretrained model of its family: the directory of a run."""
    made = {}

    def origin(family):
        if family not in made:
            kind, tokenizer = FAMILIES[family]
            model = {"kind": kind, **{k: v for k, v in SMALL.items() if kind not in RELATIVE or k != "max_positions"}}
            made[family] = tmp_path_factory.mktemp(family)
            tree = {"model": model, "data": {"tokenizer": {"kind": tokenizer}}}
            (made[family] / "config.yaml").write_text(yaml.safe_dump(tree), "utf-8")
        return made[family]

    def load(name):
        where = origin(name.partition("/")[0].partition("_")[0])
        paths = [] if is_mixture(name) else ["data.path=train.tsv"]
        return recipes.load(RECIPES[name], [f"init_from.path={where}", *paths])

    return load


def test_every_recipe_is_in_the_table_and_the_other_way_round():
    assert sorted(RECIPES) == sorted(SETTINGS)


def published(config):
    """What the table has of a recipe, as its cells are read."""
    optimizer, data = config.optimizer, config.data
    return {
        "optimizer": optimizer.kind, "learning_rate": optimizer.learning_rate, "batch_size": data.batch_size,
        "steps": config.train.steps, "warmup_steps": optimizer.schedule.warmup_steps,
        "schedule": optimizer.schedule.kind, "b1": optimizer.b1, "b2": optimizer.b2, "eps": optimizer.eps,
        "bias_correction": getattr(optimizer, "bias_correction", None), "weight_decay": optimizer.weight_decay,
        "clip_norm": optimizer.clip_norm, "layer_decay": optimizer.layer_decay, "length": data.length,
        "packing": data.packing, "dropout": config.model.dropout, "head_dropout": config.objective.dropout,
        "label_smoothing": getattr(config.objective, "label_smoothing", 0),
        "lm_loss": getattr(config.objective, "lm_loss", 0),
    }  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_settings_are_those_of_the_table(name, load):
    config, row = load(name), SETTINGS[name]
    own = published(config)
    if row["dropout"] == "":  # the released model's
        own["dropout"] = None
    assert own == {key: settings.value(row[key]) for key in own}
    assert config.run_dir == f"runs/{name.replace('/', '_')}"
    config.optimizer.schedule.build(config.optimizer.learning_rate, config.train.steps)  # the warm-up fits into the run
    config.task.check_metrics()


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("gpt/")])
def test_gpt_reads_its_own_form(name, load):
    """train.py of openai/finetune-transformer-lm, and the similarity tasks of the paper."""
    config = load(name)
    assert config.objective.extract and config.objective.truncate == "halves"
    assert config.data.tokenizer.add_tokens == GPT1_TOKENS
    assert config.objective.sequences == (2 if name in ("gpt/mrpc", "gpt/qqp", "gpt/stsb") else 1)


@pytest.mark.parametrize("name", RECIPES)
def test_headers_name_source_command_and_score(name):
    header = "".join(
        line[2:].strip() + " " for line in RECIPES[name].read_text("utf-8").splitlines() if line[:1] == "#"
    )
    path = r"Needs: +files in" if is_mixture(name) else r"data\.path="
    assert re.search(rf"Command: +jaxpt train configs/finetune/{name}\.yaml init_from\.path=HF_DIR {path}", header)
    source = re.search(r"Source: +(.+?) Command:", header)[1]
    assert source == SETTINGS[name]["source"]
    assert "Published:" in header


@pytest.mark.parametrize("name, layers", [("features", (-4, -3, -2, -1)), ("mix", "mix")])
def test_features_are_those_of_the_papers(name, layers, load):
    config = load(f"bert/conll2003_{name}")
    found = config.objective.features
    assert found.layers == layers and found.frozen and not found.norm and config.train.trainable == ("heads",)
    assert found.bilstm.model_dump() == {"size": 768, "layers": 2, "dropout": 0.5}
    assert (config.train.patience, config.train.eval_every) == (25, 14041 // 64)


GLUE = {
    "cola": (None, "gj04\t0\t*\tHe run.", ("He run.",), 0),
    "sst2": ("sentence\tlabel", "a gem \t1", ("a gem ",), 1),
    "mrpc": (
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", '1\t1\t2\tHe "ran" .\tHe ran .', ('He "ran" .', "He ran ."), 1,
    ),
    "qqp": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "0\t1\t2\tWhy?\tHow?\t0", ("Why?", "How?"), 0),
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "0\tm\tf\t2012\t1\tn\tn\tA cat.\tA dog.\t2.400", ("A cat.", "A dog."), 2.4,
    ),
    "mnli": (
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
        "sentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
        "0\t1\t1n\tfiction\t(\t(\t(\t(\tIt rains.\tIt is wet.\tneutral\tneutral", ("It rains.", "It is wet."), 1,
    ),
    "qnli": ("index\tquestion\tsentence\tlabel", "0\tWho?\tAda did.\tentailment", ("Who?", "Ada did."), 0),
    "rte": ("index\tsentence1\tsentence2\tlabel", "0\tIt fell.\tIt rose.\tnot_entailment", ("It fell.", "It rose."), 1),
    "wnli": ("index\tsentence1\tsentence2\tlabel", "0\tIt fell.\tThe cup fell.\t1", ("It fell.", "The cup fell."), 1),
}  # fmt: skip
"""The header line of GLUE's file, a line, and what is made of it."""


def of_glue(name, tmp_path):
    """A task of GLUE, and the row of its file."""
    head, line, _, _ = GLUE[name]
    path = tmp_path / "dev.tsv"
    path.write_text("".join(f"{one}\n" for one in (head, line) if one is not None), "utf-8")
    return task_and_row(f"glue/{name}", path)


def task_and_row(name, path):
    """A task, and the row of a file."""
    tree = yaml.safe_load((ROOT / f"{name}.yaml").read_text("utf-8"))
    tokenizer = {"tokenizer": {"kind": "wordpiece"}}
    task = build({**tree, "model": {"kind": "bert", **SMALL}, "data": tokenizer}).task
    task.check_metrics()
    (row,) = RowFile(str(path)).rows(task)
    return task, row


@pytest.mark.parametrize("name", GLUE)
def test_columns_are_those_of_glue(name, tmp_path):
    _, _, texts, target = GLUE[name]
    task, row = of_glue(name, tmp_path)
    assert task.texts(row, "line 2") == texts
    assert task.target(row, "line 2") == target


@pytest.mark.parametrize("name", GLUE)
def test_texts_of_glue_are_those_of_t5(name, tmp_path):
    _, _, (first, *second), target = GLUE[name]
    task, row = of_glue(name, tmp_path)
    keys = {
        "qqp": ("question1", "question2"), "mnli": ("premise", "hypothesis"), "qnli": ("question", "sentence"),
    }.get(name, ("sentence1", "sentence2") if second else ("sentence",))  # fmt: skip
    texts = dict(zip(keys, (first, *second)))
    assert task.input_text(row, "line 2") == " ".join([name, *(f"{key}: {texts[key]}" for key in sorted(texts))])
    words = TASKS[name].labels
    assert task.target_text(row, "line 2") == (words[target] if words else "2.4")


def test_the_tasks_of_a_mixture_are_those_of_their_own_files():
    tree = yaml.safe_load((ROOT / "glue/mixture.yaml").read_text("utf-8"))
    own = {name: yaml.safe_load((ROOT / f"glue/{name}.yaml").read_text("utf-8"))["task"] for name in GLUE}
    assert {task["name"]: task for task in tree["task"]["tasks"]} == {n: t for n, t in own.items() if n != "wnli"}
    assert [one["name"] for one in tree["data"]["mixture"]] == [task["name"] for task in tree["task"]["tasks"]]


SUPER_GLUE = {
    "boolq": (
        '{"question": "is it wet", "passage": "It rains.", "idx": 0, "label": true}',
        "boolq passage: It rains. question: is it wet", "True",
    ),
    "cb": (
        '{"premise": "It rains.", "hypothesis": "it is wet", "label": "contradiction", "idx": 0}',
        "cb hypothesis: it is wet premise: It rains.", "contradiction",
    ),
    "copa": (
        '{"premise": "It fell.", "choice1": "It broke.", "choice2": "It flew.", "question": "effect", "label": 1}',
        "copa choice1: It broke. choice2: It flew. premise: It fell. question: effect", "choice2",
    ),
    "multirc": (
        '{"idx": 3, "passage": {"text": "<b>Sent 1: </b>He ran.<br>", "questions": [{"question": "Who?", "idx": 7, '
        '"sentences_used": [1], "answers": [{"text": "He", "idx": 20, "label": 1}]}]}}',
        "multirc question: Who? answer: He paragraph: Sent 1: He ran. ", "True",
    ),
    "record": (
        '{"source": "Daily mail", "idx": 3, "passage": {"text": "Ann met Bob.\\n@highlight\\nRain", "entities": '
        '[{"start": 8, "end": 10}, {"start": 0, "end": 2}]}, "qas": [{"query": "@placeholder smiled.", "idx": 4, '
        '"answers": [{"text": "Bob", "start": 8, "end": 10}]}]}',
        "record query: @placeholder smiled. entities: Ann, Bob passage: Ann met Bob. Rain", "Bob",
    ),
    "wsc": (
        '{"text": "Ann asked Tom if he came .", "target": {"span1_text": "tom", "span1_index": 2, "span2_text": "he", '
        '"span2_index": 4}, "idx": 0, "label": true}',
        "wsc: Ann asked Tom if *he* came .", "Tom",
    ),
    "rte": (
        '{"premise": "It rains.", "hypothesis": "It is wet.", "label": "entailment", "idx": 0}',
        "rte hypothesis: It is wet. premise: It rains.", "entailment",
    ),
    "wic": (
        '{"word": "bank", "sentence1": "A bank.", "sentence2": "The bank.", "idx": 0, "label": false, "start1": 2}',
        "wic sentence1: A bank. sentence2: The bank. word: bank", "False",
    ),
}  # fmt: skip
"""A line of SuperGLUE's file, and T5's inputs and target."""


@pytest.mark.parametrize("name", SUPER_GLUE)
def test_texts_of_super_glue_are_those_of_t5(name, tmp_path):
    line, inputs, target = SUPER_GLUE[name]
    (tmp_path / "val.jsonl").write_text(line + "\n", "utf-8")
    task, row = task_and_row(f"super_glue/{name}", tmp_path / "val.jsonl")
    assert task.input_text(row, "line 1") == inputs
    assert task.target_text(row, "line 1") == target
    right = task.target(row, "line 1")
    assert task.parse(target, row, "line 1") == right or [target] == right


ENCODED = {
    "multirc": ("multirc", [("<b>Sent 1: </b>He ran.<br> Who?", "He")], 1),
    "record_choice": (
        "record",
        [("Ann met Bob.\n@highlight\nRain", "Ann smiled."), ("Ann met Bob.\n@highlight\nRain", "Bob smiled.")], 1,
    ),
    "copa_choice": ("copa", [("It fell. What happened as a result?", text) for text in ("It broke.", "It flew.")], 1),
    "wsc_pair": ("wsc", [("Ann asked Tom if he came .", "he Tom")], 1),
}  # fmt: skip
"""The set, the pairs of texts that an encoder reads, and the target."""


@pytest.mark.parametrize("name", ENCODED)
def test_pairs_of_super_glue(name, tmp_path):
    of, pairs, target = ENCODED[name]
    (tmp_path / "val.jsonl").write_text(SUPER_GLUE[of][0] + "\n", "utf-8")
    task, row = task_and_row(f"super_glue/{name}", tmp_path / "val.jsonl")
    found = task.pairs(row, "line 1") if task.kind == "multiple_choice" else [task.texts(row, "line 1")]
    assert found == pairs
    assert task.target(row, "line 1") == target


def test_dialogues(tmp_path):
    """Over any decoder; the tokens of the chat template are added to its vocabulary."""
    model = {"kind": "llama", **SMALL}
    tree = {"model": model, "data": {"tokenizer": {"kind": "bpe"}}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree), "utf-8")
    config = recipes.load(ROOT / "dialogue/alpaca.yaml", [f"init_from.path={tmp_path}", "data.path=alpaca.jsonl"])
    assert config.objective.kind == "dialogue" and config.objective.template == "chatml"
    assert config.data.tokenizer.add_tokens == ("<|im_start|>", "<|im_end|>")
    assert config.train.steps == 3 * 52_002 // 128 and config.optimizer.schedule.warmup_steps == 37


@pytest.mark.parametrize(
    ("name", "model", "tokenizer", "layers"),
    [
        ("tagging/ewt_elmo", {"kind": "elmo", "cells": 16, "filters": [[1, 4]]}, "spelled_words", "mix"),
        ("cove/ewt", {"kind": "t5", "layers": 2, "heads": 2, "mlp_dim": 32}, "sentencepiece", (0, -1)),
    ],
)
def test_features_of_frozen_models_train_the_heads_alone(name, model, tokenizer, layers, tmp_path):
    tree = {"model": {"vocab_size": 128, "embed_dim": 16, **model}, "data": {"tokenizer": {"kind": tokenizer}}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree), "utf-8")
    words = [f"{n}\t{word}\t_\t{tag}" + "\t_" * 6 for n, (word, tag) in enumerate([("It", "PRON"), ("is", "AUX")], 1)]
    (tmp_path / "train.conllu").write_text("\n".join([*words, "", ""]), "utf-8")
    overrides = [f"init_from.path={tmp_path}", f"data.path={tmp_path / 'train.conllu'}"]
    config = recipes.load(ROOT / f"{name}.yaml", overrides)
    assert config.train.trainable == ("heads",) and config.objective.features.layers == layers
    assert "bilstm" in config.objective.heads(config.model) and config.task.metrics[0] == "tag_accuracy"
