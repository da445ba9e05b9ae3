"""`jaxpt data` says of a recipe's data what is in its files."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxpt import cli
from jaxpt.config import TokenizerConfig
from jaxpt.data import tokenizers
from tests import fine_tuning

ROOT = Path(__file__).parents[2]
SMOKE, FINETUNE = ROOT / "configs" / "smoke", ROOT / "configs" / "finetune"


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def run(capsys, *argv):
    code = cli.main(["data", *map(str, argv)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def measured(capsys, *argv):
    code, out, err = run(capsys, *argv, "--json")
    assert code == 0, err
    return json.loads(out)


def write(name, lines):
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def test_texts(capsys):
    lines = [f"The cat number {n} sat on the mat." for n in range(60)] + ["The dog slept in the old house."] * 3
    write("texts/a.txt", [*lines, ""])
    write("valid.txt", ["The cat number 3 sat on the mat.", "Nobody saw the dog in the house."])
    Path("texts/b.md.gz").write_bytes(gzip.compress(b"A text in another file, with some more words in it.\n"))
    common = ("data.path=texts", "data.validation_path=valid.txt", "data.length=8", "train.steps=20")
    common = (SMOKE / "gpt2_tiny.yaml", *common, "data.batch_size=4")
    found = measured(capsys, *common)
    train, valid = (found["parts"]["data"]["splits"][split] for split in ("train", "validation"))
    lines.append("A text in another file, with some more words in it.")
    assert found["unit"] == "words" and found["vocabulary"] is None and found["phases"][0]["epochs"] is None
    assert (train["documents"], train["empty"], train["words"]) == (64, 1, sum(len(line.split()) for line in lines))
    assert train["duplicates"]["count"] == 2 and train["duplicates"]["example"]["text"] == lines[60]
    assert valid["in_train"]["count"] == 1 and train["languages"]["shares"]["en"] > 0.9
    settings = TokenizerConfig(kind="bpe")
    tokenizer = tokenizers.train(lines, settings, 300, "vocabulary")
    found = measured(capsys, *common, "data.tokenizer.path=vocabulary", "data.tokenizer.vocab_size=null")
    train = found["parts"]["data"]["splits"]["train"]
    sizes = [len(ids) for ids in tokenizer.encode_batch(lines)]
    assert train["total"] == sum(sizes) and train["lengths"]["most"] == max(sizes)
    assert train["longer"] == {"8": sum(size > 8 for size in sizes)}
    assert found["phases"][0]["epochs"]["data"] == pytest.approx(20 * 4 * 8 / sum(sizes))
    code, out, _ = run(capsys, *common, "-n", "10")
    assert (
        code == 0 and "only the first 10 of each split were read" in out and "texts: 2 files (1 .txt, 1 .md.gz)" in out
    )
    assert all(len(line) <= 100 for line in out.splitlines())


def rows_of(name):
    """40 rows of two columns in some format, with their texts."""
    rows = [{"text": f"film number {n} is {'good' if n % 4 else 'bad'}", "label": "yn"[n % 4 > 0]} for n in range(40)]
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), name)
    elif name.endswith(".jsonl"):
        write(name, map(json.dumps, rows))
    else:
        mark = "," if name.endswith(".csv") else "\t"
        write(name, [f"text{mark}label", *(f"{row['text']}{mark}{row['label']}" for row in rows)])
    return rows


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.parquet"])
def test_labelled_rows_without_a_model(capsys, name):
    """The recipe starts from a model that is not there: the data can be looked at all the same."""
    rows = rows_of(name)
    write("test.csv", ["text", rows[0]["text"], "a new one"])
    found = measured(
        capsys, FINETUNE / "roberta" / "sst2.yaml", f"data.path={name}", "task.text=text", "task.labels=null",
        "task.names=null", "data.test_path=test.csv", "train.steps=10", "data.batch_size=8",
    )  # fmt: skip
    splits = found["parts"]["data"]["splits"]
    assert sum(splits[split]["documents"] for split in ("train", "validation")) == 40
    counts = [splits[split]["labels"] for split in ("train", "validation")]
    assert {label: sum(of.get(label, 0) for of in counts) for label in "ny"} == {"n": 30, "y": 10}
    assert splits["test"]["documents"] == 2 and "labels" not in splits["test"]
    assert splits["test"]["in_train"]["count"] + splits["validation"]["documents"] >= 1
    assert splits["train"]["columns"]["text"]["mean"] == 5 and found["unit"] == "words"
    assert found["phases"][0]["epochs"]["data"] == pytest.approx(80 / splits["train"]["documents"])


def test_epochs_are_of_examples(tmp_path, capsys):
    """A symmetric pair is two of them; how many a run packs into a row is not known before."""
    fine_tuning.recipe(tmp_path, task={"kind": "classification", "pair": "other", "is_symmetric": True})
    found = measured(capsys, "recipe.yaml")
    train = found["parts"]["data"]["splits"]["train"]
    assert found["phases"][0]["epochs"]["data"] == pytest.approx(4 * 8 / (2 * train["documents"]))
    assert measured(capsys, "recipe.yaml", "data.packing=true")["phases"][0]["epochs"] is None
    assert "epochs are known once a run packs its rows" in run(capsys, "recipe.yaml", "data.packing=true")[1]


def test_several_labels_of_a_row(capsys):
    """Shares are of the rows; of more than 20 labels the most frequent are shown."""
    rows = [f"text {n},all|{'even' if n % 2 else 'odd'}|{n % 30:02}" for n in range(60)]
    write("a.csv", ["text,labels", *rows])
    write("dev.csv", ["text,labels", "another,all"])
    recipe = FINETUNE / "smoke" / "classify_tiny.yaml"
    task = "task={kind: multi_label, text: text, label: labels, metrics: [micro_f1]}"
    sources = ("data.source=text", "data.path=a.csv", "data.validation_path=dev.csv", "data.test_path=null")
    code, out, err = run(capsys, recipe, task, *sources)
    assert code == 0, err
    shown = [line.split() for line in out.splitlines() if line.strip().startswith("label ")]
    assert [line[1:4] for line in shown[:3]] == [
        ["all", "60", "(100.0%)"],
        ["even", "30", "(50.0%)"],
        ["odd", "30", "(50.0%)"],
    ]
    assert len(shown) == 20 and "and 13 less frequent labels" in out


def test_rows_of_words_and_questions(capsys):
    write("a.conll", [line for n in range(30) for line in ("John B-PER", "lives O", "in O", f"Rome{n} B-LOC", "")])
    found = measured(
        capsys, FINETUNE / "bert" / "conll2003.yaml", "data.path=a.conll", "task.tags=tags", "task.labels=null"
    )
    train = found["parts"]["data"]["splits"]["train"]
    assert train["lengths"]["mean"] == 4 and train["labels"]["O"] == 2 * train["documents"]
    question = {"question": "Who sat?", "answers": [{"text": "cat", "answer_start": 4}]}
    contexts = [f"The cat {n} sat on the mat." for n in range(30)]
    paragraphs = [{"context": text, "qas": [question | {"id": str(n)}]} for n, text in enumerate(contexts)]
    Path("squad.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}], "version": "1.1"}))
    found = measured(capsys, FINETUNE / "bert" / "squad1.yaml", "data.path=squad.json")
    columns = found["parts"]["data"]["splits"]["train"]["columns"]
    assert columns["question"]["most"] == 2 and columns["context"]["most"] == 7


def test_rows_that_are_cut(capsys):
    """As many as the encoder of training cuts: [CLS] text [SEP] in data.length tokens."""
    rows = rows_of("a.csv")
    texts = [row["text"] for row in rows] + [f"{'word ' * 12}{n}" for n in range(10)]
    write("train.csv", ["text,label", *(f"{text},{'yn'[n % 2]}" for n, text in enumerate(texts))])
    settings = TokenizerConfig(kind="wordpiece")
    tokenizer = tokenizers.train(texts, settings, 120, "vocabulary")
    model = "{kind: bert, vocab_size: 200, layers: 1, embed_dim: 32, heads: 2, mlp_dim: 64}"
    found = measured(
        capsys, FINETUNE / "roberta" / "sst2.yaml", "data.path=train.csv", "data.validation_path=a.csv",
        "task.text=text", "task.labels=[y,n]", "task.names=null", f"model={model}",
        "data.tokenizer={kind: wordpiece, path: vocabulary}", "data.length=12",
    )  # fmt: skip
    cut = found["parts"]["data"]["splits"]["train"]["cut"]
    assert cut == {"examples": 50, "cut": sum(len(tokenizer.encode(text)) > 10 for text in texts), "left_out": 0}
    assert cut["cut"] >= 10 and found["vocabulary"]["kind"] == "wordpiece"
    assert found["parts"]["data"]["splits"]["validation"]["in_train"]["count"] == 40


def test_a_mixture_and_numbers(capsys):
    for name in "ab":
        write(f"{name}.txt", [f"document {n} of {name} has a few words." for n in range(40)])
    mixture = "[{name: a, path: a.txt, rate: 3}, {name: b, path: b.txt, rate: 1}]"
    mixture = mixture.replace("rate", "validation_fraction: 0.2, rate")
    found = measured(capsys, SMOKE / "gpt2_tiny.yaml", f"data.mixture={mixture}")
    assert list(found["parts"]) == ["a", "b"] and found["parts"]["b"]["source"] == "b.txt"
    write("sts.csv", ["sentence1,sentence2,score", *(f"a cat {n},a dog {n},{n / 8}" for n in range(40))])
    code, out, err = run(capsys, FINETUNE / "bert" / "stsb.yaml", "data.path=sts.csv")
    assert code == 0, err
    assert "number to predict: mean" in out and "words in sentence2: 5, 50, 95 %" in out


def test_control_characters_do_not_reach_the_terminal(capsys):
    rows = [f"\x1b[31mred {n % 3} and more words,\x1b]0;{'ab'[n % 2]}" for n in range(40)]
    write("a.csv", ["text,label", *rows])
    recipe = (
        FINETUNE / "roberta" / "sst2.yaml",
        "data.path=a.csv",
        "task.text=text",
        "task.labels=null",
        "task.names=null",
    )
    code, out, err = run(capsys, *recipe)
    assert code == 0 and r"times: \x1b[31mred" in out and r"label \x1b]0;a" in out and "\x1b" not in out + err


def test_copies_of_an_empty_text_are_named(capsys):
    write("a.csv", ["text,label", *(f"film {n},y" for n in range(10)), *[",n"] * 20])
    keys = ("data.path=a.csv", "task.text=text", "task.labels=null", "task.names=null")
    code, out, _ = run(capsys, FINETUNE / "roberta" / "sst2.yaml", *keys)
    assert code == 0 and "times: (no text)\n" in out


def test_what_cannot_be_read_is_said_in_a_line(capsys):
    write("a.txt", ["some words"])
    for recipe, word, said in (
        ("gpt2_tiny", "data.path=gone.txt", "data.path: gone.txt: no such file"),
        ("t5_tiny", "objective={kind: seq2seq}", "jaxpt inspect shows its examples"),
        ("gpt2_tiny", "data.path=a.txt", "leaves the"),
    ):
        code, out, err = run(capsys, SMOKE / f"{recipe}.yaml", word)
        assert (
            (code, out) == (2, "")
            and said in err
            and len([line for line in err.splitlines() if "note:" not in line]) == 1
        )
