"""What a new user reads and pastes: the lines of a run, of its resume, and the commands that they end with."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from jaxpt import cli
from tests import families

LINES = "\n".join(f"document {n} says that the cat sat on the mat and the dog ran to house {n * n}" for n in range(90))


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A small recipe whose paths have spaces."""
    monkeypatch.chdir(tmp_path)
    Path("my texts").mkdir()
    Path("my texts/one.txt").write_text(LINES)
    tree = families.tree("gpt2", model={"vocab_size": 300, "layers": 1}, log={"tensorboard": False})
    tree["data"] |= {"path": "my texts/*.txt", "cache_dir": "cache", "length": 16, "validation_fraction": 0.1}
    tree |= {"run_dir": "my runs/first", "evals": [{"kind": "heldout"}, {"kind": "baseline"}, {"kind": "samples"}]}
    Path("my recipe.yaml").write_text(yaml.safe_dump(tree))
    return "my recipe.yaml"


def printed(capsys, *argv):
    """The lines of a command that succeeds; they fit 100 columns, or are a command."""
    assert cli.main(argv) == 0
    lines = [line for text in capsys.readouterr() for line in text.splitlines()]
    is_text = argv[0] == "generate"  # the model's
    assert is_text or not [line for line in lines if len(line) > 100 and ": jaxpt " not in line]
    return lines


@pytest.mark.slow
def test_a_run_its_resume_and_the_commands_at_its_end(recipe, capsys, monkeypatch):
    from jaxpt.train import display

    lines = printed(capsys, "train", recipe, "train.steps=4", "train.eval_every=2")
    assert any(re.match(r"prepared train: \d+ records in ", line) for line in lines)
    commands = [line.partition(": ")[2] for line in lines if ": jaxpt " in line]
    assert [words.split()[1] for words in commands] == ["eval", "inspect", "train", "generate"]
    run_dirs = [shlex.split(words)[2] for words in commands]
    assert run_dirs == ["my runs/first"] * 4
    for words in commands:
        lines = printed(capsys, *shlex.split(words)[1:])
        if " train " in words:
            assert "resuming from step 4 of 8: my runs/first/checkpoints/4" in lines
            assert "changed since the last start: train.steps 4 → 8" in lines
            assert any(line.startswith("step 8/8  loss ") for line in lines)
    # In a terminal the bar ends with its total.
    monkeypatch.setattr(type(display.console), "is_terminal", property(lambda console: True))
    assert cli.main(["train", run_dirs[0], "train.steps=9"]) == 0
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", capsys.readouterr().out)
    assert re.search(r"^\W*step 9/9  loss [\d.]+ .*\n", shown, re.M)
