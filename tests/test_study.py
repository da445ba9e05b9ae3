"""A study trains its rows on equal amounts of text, loses none to another's mistake, and goes on where it was killed."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from jaxpt import config as configs
from jaxpt import study
from jaxpt.config.studies import load_study
from tests import families

ROOT = Path(__file__).parents[1]
SIZES = {"gpt2": 300, "t5": 160, "bert": 160}


def write_study(tmp_path, rows=("gpt2", "t5"), **top):
    """A study of tiny rows on a small corpus."""
    lines = [f"document number {n} says that the cat sat on the mat and the dog ran to house {n * n}" for n in range(90)]
    (tmp_path / "corpus.txt").write_text("\n".join(lines))
    for family in rows:
        tree = families.tree(family, model={"vocab_size": SIZES[family], "layers": 1}, log={"tensorboard": False})
        tree["data"] |= {"path": str(tmp_path / "corpus.txt"), "cache_dir": str(tmp_path / "cache"), "length": 16}
        tree["data"]["validation_fraction"] = 0.1
        if family == "bert":
            tree["objective"]["next_sentence"] = False
        (tmp_path / f"{family}.yaml").write_text(yaml.safe_dump(tree))
    tree = {"question": "which?", "run_dir": str(tmp_path / "study"), **top}
    tree["rows"] = [{"name": family, "recipe": f"{family}.yaml"} for family in rows]
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(tree))
    return tmp_path / "study.yaml"


def start(path, *arguments):
    command = [sys.executable, "-m", "jaxpt", "study", str(path), *arguments]
    environment = os.environ | {"XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def read_until(started, pattern):
    for line in started.stdout:
        if re.search(pattern, line):
            return line
    raise AssertionError(f"ended without {pattern}")


def table(tmp_path):
    """The table's rows without what the clock says."""
    rows = json.loads((tmp_path / "study" / "table.json").read_text())["rows"]
    return {row["name"]: {k: v for k, v in row.items() if k not in ("wall_seconds", "run_dir", "recipe")} for row in rows}


@pytest.fixture(scope="module")
def budgets(tmp_path_factory):
    """{family: (steps that a budget of 5,000 tokens gives, the prepared data, its configuration)}"""
    from jaxpt.data import pipeline

    tmp_path = tmp_path_factory.mktemp("budgets")
    plan = load_study(write_study(tmp_path, families.FAMILIES, tokens=5000))
    found, prepare, made = {}, pipeline.prepare, []

    def noting(config, **kwargs):
        made.append(prepare(config, **kwargs))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "prepare", noting)
        for row in plan.rows:
            config = configs.load(row.recipe, plan.overrides(row))
            found[row.name] = study.budget(plan, config), made.pop(), config
    return found


@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_budget_is_the_same_text_in_all_families(budgets, family):
    """Counted again from the records: windows cover each token of the documents once, whatever is made of them."""
    steps, data, config = budgets[family]
    store = data.stores["train"]
    assert steps == round(5000 / (8 * data.text_per_row))
    of_records = int(store.lengths("tokens").sum())
    text = round(data.text_per_row * len(store))
    assert of_records - text == {"gpt2": len(store), "t5": 0, "bert": 2 * len(store)}[family]
    documents = Path(config.data.path).read_text().splitlines()
    whole = sum(len(data.tokenizer.encode(x)) + (family == "gpt2") for x in documents)  # GPT-2 puts EOS after each
    assert 0.8 * whole < text < whole, "a tenth is held out"


def test_phases_have_no_budget(tmp_path):
    plan = load_study(write_study(tmp_path, ["gpt2"], tokens=50), ["train.phases=[{steps: 3}, {}]"])
    config = configs.load(plan.rows[0].recipe, plan.overrides(plan.rows[0]))
    with pytest.raises(study.UserError, match="in a study with tokens, set train.phases: "):
        study.budget(plan, config)


@pytest.mark.slow
def test_killed_and_continued_gives_the_same_table(tmp_path):
    path = write_study(tmp_path, tokens=3000)
    assert start(path, f"run_dir={tmp_path / 'whole'}").wait(300) == 0
    (tmp_path / "whole").rename(tmp_path / "study")
    wanted = table(tmp_path)
    assert {row["status"] for row in wanted.values()} == {"finished"}
    assert all(math.isclose(row["text_tokens"], 3000, rel_tol=0.1) for row in wanted.values()), wanted
    assert (tmp_path / "study" / "picture.png").stat().st_size > 10_000
    (tmp_path / "study").rename(tmp_path / "whole")

    first = start(path, "train.log_every=1")
    read_until(first, r"^\[t5\] step 3/")
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    assert table(tmp_path)["gpt2"] == wanted["gpt2"] and table(tmp_path)["t5"]["status"] == "not started"
    second = start(path, "train.log_every=1")
    output = read_until(second, "gpt2. is finished at step") + read_until(second, r"^\[t5\] step \d/")
    second.send_signal(signal.SIGTERM)
    output += second.communicate()[0]
    assert second.returncode == 128 + signal.SIGTERM and "[t5] stopped by a signal after step" in output, output
    assert table(tmp_path)["t5"]["status"] == "under way"
    third = start(path, "train.log_every=1")
    output = third.communicate()[0]
    assert third.returncode == 0 and "[t5] going on from step" in output, output
    assert table(tmp_path) == wanted


@pytest.mark.slow
def test_a_row_that_fails_does_not_stop_the_others(tmp_path):
    path = write_study(tmp_path, ["gpt2"])
    tree = yaml.safe_load(path.read_text())
    settings = {"late": {"data.length": 64}, "early": {"train.stepz": 3}}
    tree["rows"] = [{"name": n, "recipe": "gpt2.yaml", "set": s} for n, s in settings.items()] + tree["rows"]
    path.write_text(yaml.safe_dump(tree))
    stopped = start(path, "train.steps=2", "--stop")
    assert "row early" not in stopped.communicate()[0] and stopped.returncode == 1
    whole = start(path, "train.steps=2")
    output = whole.communicate()[0]
    assert whole.returncode == 1 and "Traceback" not in output, output
    status = {name: row["status"] for name, row in table(tmp_path).items()}
    assert status["gpt2"] == "finished" and re.match("failed: .*data.length.*64", status["late"])
    assert status["early"] == f"failed: {path}: row early: unknown key train.stepz; did you mean steps?"
