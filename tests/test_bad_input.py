"""A user's mistake ends in one clear line and exit code 2, before the first step, and leaves nothing half written."""

import json
import shutil

import pytest
import yaml

from jaxpt import cli
from jaxpt.runtime import exit_codes
from tests import families

WORDS = "says that the cat sat on the mat and the dog ran to the house"
TEXT = "\n".join(f"document number {i} {WORDS}" for i in range(60))


@pytest.fixture
def attempt(tmp_path, capsys):
    """Runs a command on a small GPT-2 recipe with some keys changed; gives exit code and what was printed."""
    (tmp_path / "good.txt").write_text(TEXT)

    def run(*overrides, command="train", family="gpt2", **data):
        size = {"gpt2": 300, "t5": 160}[family]
        tree = families.tree(
            family,
            model={"vocab_size": size, "layers": 1},
            data={
                "path": str(tmp_path / "good.txt"),
                "cache_dir": str(tmp_path / "cache"),
                "validation_fraction": 0.1,
                "length": 16,
                **data,
            },
            mesh={"data": 8},
            log={"tensorboard": False},
        )
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(yaml.safe_dump(tree))
        code = cli.main([command, str(recipe), f"run_dir={tmp_path / 'run'}", *overrides])
        return code, capsys.readouterr().err

    return run


def assert_refused(result, tmp_path, *words, code=2):
    found, message = result
    lines = [line for line in message.splitlines() if line.strip()]
    assert found == code, message
    assert len(lines) == 1, f"one line is wanted:\n{message}"
    for word in words:
        assert word in lines[0], f"{word!r} is not in: {lines[0]}"
    assert not (tmp_path / "run").exists()


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


BROKEN = '{"text": "one"}\n{"text": "two"\n'
FILES = {
    "empty": ("empty.txt", "", ["empty.txt"]),
    "blank lines": ("blank.txt", "\n\n  \n", ["blank.txt"]),
    "not UTF-8": ("latin.txt", b"good line\ncaf\xe9 au lait\n", ["latin.txt", "2", "UTF-8"]),
    "broken JSON": ("broken.jsonl", BROKEN, ["broken.jsonl", "2"]),
    "no such field": ("other.jsonl", '{"body": "one"}\n', ["other.jsonl", "text", "body"]),
    "field is no text": ("number.jsonl", '{"text": 7}\n', ["number.jsonl", "1", "text"]),
    "not gzip": ("plain.txt.gz", "plain text", ["plain.txt.gz"]),
}


@pytest.mark.parametrize(("case", "command"), [*((case, "cache") for case in FILES), ("not UTF-8", "train")])
def test_files(attempt, tmp_path, case, command):
    """By the command that prepares data and no more; training does so beside compiling."""
    name, content, words = FILES[case]
    assert_refused(attempt(command=command, path=write(tmp_path / name, content)), tmp_path, *words)


def test_missing_file(attempt, tmp_path):
    assert_refused(attempt(path=str(tmp_path / "no.txt")), tmp_path, "no.txt")


def test_directory(attempt, tmp_path):
    (tmp_path / "folder").mkdir()
    assert_refused(attempt(path=str(tmp_path / "folder")), tmp_path, "folder", "directory")


def test_vocabulary_larger_than_the_model(attempt, tmp_path):
    vocab = {f"w{i}": i for i in range(500)} | {"<|endoftext|>": 500}
    folder = tmp_path / "vocab"
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    result = attempt(f"data.tokenizer.path={folder}")
    assert_refused(result, tmp_path, "501", "300")


SETTINGS = {
    "unknown key": (["train.step=5"], ["train.step", "mean train.steps"]),
    "wrong type": (["train.steps=many"], ["train.steps", "whole number", "many"]),
    "mesh": (["mesh.data=3"], ["mesh.data=3", "there are 8"]),
    "batch": (["data.batch_size=12"], ["data.batch_size", "12"]),
    "grad_accum_steps": (["train.grad_accum_steps=3"], ["train.grad_accum_steps", "8"]),
    "position table": (["data.length=64"], ["data.length", "64", "32"]),
    "phases": (['train.phases=[{"steps": 99}]'], ["train.phases", "99"]),
    "later phase": (['train.phases=[{"steps": 5}, {"set": {"data.length": 64}}]'], ["data.length", "64", "32"]),
    "family": (["objective={kind: masked_lm}"], ["family"]),
    "branch": (["init_from.path=nowhere"], ["nowhere"]),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings(attempt, tmp_path, case):
    overrides, words = SETTINGS[case]
    assert_refused(attempt(*overrides), tmp_path, *words)


def test_more_spans_than_sentinels(attempt, tmp_path):
    result = attempt("data.tokenizer.extra_ids=2", family="t5", length=64)
    assert_refused(result, tmp_path, "sentinels", "data.length", "extra_ids")


def test_run_dir_below_a_file(attempt, tmp_path):
    assert_refused(attempt(f"run_dir={tmp_path / 'good.txt' / 'run'}"), tmp_path, "run_dir", "good.txt")


@pytest.mark.parametrize("key", ["run_dir", "checkpoint.copy_to"])
def test_a_bucket_or_a_home_is_no_directory(attempt, tmp_path, monkeypatch, key):
    monkeypatch.chdir(tmp_path)
    assert_refused(attempt(f"{key}=gs://bucket/run"), tmp_path, f"{key}: gs://bucket/run", "mounted")
    assert_refused(attempt(f"{key}=~/run"), tmp_path, "~ is expanded by shells alone")
    cache = "data.cache_dir=gs://bucket/cache"
    assert_refused(attempt(cache), tmp_path, "data.cache_dir: gs://bucket/cache: is an address")
    assert not (tmp_path / "gs:").exists() and not (tmp_path / "~").exists()


def test_no_space(attempt, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    assert_refused(attempt(), tmp_path, "GB are free", "keep_last", code=exit_codes.STORAGE)


@pytest.mark.slow
def test_a_run_of_another_configuration_or_of_data_that_changed(attempt, tmp_path):
    run = tmp_path / "run"
    assert attempt("train.steps=2")[0] == 0
    saved = (run / "config.yaml").read_text()
    code, message = attempt("train.steps=2", "optimizer.learning_rate=0.5")
    assert code == 2 and len(message.strip().splitlines()) == 1
    assert "optimizer.learning_rate" in message and "0.001" in message and "0.5" in message
    code, message = attempt("train.steps=1")
    assert code == 2 and f"train.steps: 1 is below step 2 that {run} has reached; leave it out" in message
    assert (run / "config.yaml").read_text() == saved
    assert attempt("train.steps=2")[0] == 0
    (tmp_path / "good.txt").write_text(TEXT.replace("cat", "cow"))
    code, message = attempt("train.steps=4")
    assert code == 2 and len(message.strip().splitlines()) == 1
    assert "other data" in message
