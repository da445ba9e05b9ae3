"""A study trains its rows on equal amounts of text, loses none to another's mistake, and goes on after a kill."""

import doctest
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from jaxpt import config as configs
from jaxpt import study
from jaxpt.config.studies import StudyRow, load_study
from jaxpt.errors import UserError
from jaxpt.train.lock import hold
from tests import families

ROOT = Path(__file__).parents[1]
SIZES = {"gpt2": 300, "t5": 160, "bert": 160}


def write_study(tmp_path, rows=("gpt2", "t5"), **top):
    """A study of tiny rows on a small corpus."""
    lines = [
        f"document number {n} says that the cat sat on the mat and the dog ran to house {n * n}" for n in range(90)
    ]
    (tmp_path / "corpus.txt").write_text("\n".join(lines))
    for family in rows:
        sections = {"log": {"tensorboard": False}, "evals": families.EVALUATED[:2]}
        tree = families.tree(family, model={"vocab_size": SIZES[family], "layers": 1}, **sections)
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
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1")
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def read_until(started, pattern):
    for line in started.stdout:
        if re.search(pattern, line):
            return line
    raise AssertionError(f"ended without {pattern}")


def table(tmp_path):
    """The table's rows without what the clock says."""
    rows = json.loads((tmp_path / "study" / "table.json").read_text())["rows"]
    return {
        row["name"]: {k: v for k, v in row.items() if k not in ("wall_seconds", "run_dir", "recipe")} for row in rows
    }


@pytest.fixture(scope="module")
def budgets(tmp_path_factory):
    """{family: (steps that a budget of 5,000 tokens gives, the prepared data, its configuration)}"""
    from jaxpt.data import datasets

    tmp_path = tmp_path_factory.mktemp("budgets")
    plan = load_study(write_study(tmp_path, families.FAMILIES, tokens=5000))
    found, prepare, made = {}, datasets.prepare, []

    def noting(config, **kwargs):
        made.append(prepare(config, **kwargs))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "prepare", noting)
        for row in plan.rows:
            config = configs.load(row.recipe, plan.overrides(row))
            found[row.name] = study.budget(plan, config), made.pop(), config
    return found


@pytest.mark.slow
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


@pytest.mark.slow
def test_killed_and_continued_gives_the_same_row(tmp_path):
    """Two rows of the same settings; the study is killed in the second one, and goes on."""
    path = write_study(tmp_path, ["gpt2"])
    tree = yaml.safe_load(path.read_text())
    tree["set"] = {"train": {"steps": 12, "log_every": 1, "eval_every": 4}}
    tree["rows"] = [{"name": name, "recipe": "gpt2.yaml"} for name in ("whole", "killed")]
    path.write_text(yaml.safe_dump(tree))
    first = start(path)
    read_until(first, r"^\[killed\] step 5/")
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    assert {name: row["status"] for name, row in table(tmp_path).items()} == {
        "whole": "finished",
        "killed": "not started",  # when the table was written
    }
    second = start(path)
    output = second.communicate()[0]
    assert second.returncode == 0 and "[whole] is finished at step 12" in output, output
    rows = table(tmp_path)
    assert rows["killed"]["status"] == "finished" and rows["killed"]["margin"] is not None
    assert rows["killed"] | {"name": "whole"} == rows["whole"]
    made = {name: len(list((tmp_path / "cache" / name).iterdir())) for name in ("tokenizers", "records")}
    assert made == {"tokenizers": 1, "records": 2}, "rows of equal data share them"


@pytest.mark.slow
def test_text_is_counted_in_a_process_of_its_own(tmp_path):
    plan = load_study(write_study(tmp_path, ["gpt2"], tokens=5000))
    config = configs.load(plan.rows[0].recipe, plan.overrides(plan.rows[0]))
    assert 35 < study._counted(plan, config, study.Child()) < 42, "8 rows of at most 16 tokens a step"
    phases = ["train.phases=[{steps: 3}, {}]"]
    with pytest.raises(UserError, match=r"in a study with tokens; set train\.phases"):
        study._counted(plan, configs.load(plan.rows[0].recipe, phases), study.Child())


# ---- rows without training ------------------------------------------------------------------------------------------


def python(code):
    return [sys.executable, "-c", code]


def test_lines_of_a_row_and_why_it_failed(capsys):
    child = study.Child()
    assert study._run(python("print('one'); print('two [x]')"), "a", child) == ""
    assert capsys.readouterr().out == "[a] one\n[a] two [x]\n"
    assert study._run(python("print('jaxpt: too long\\n'); exit(2)"), "a", child) == "too long"
    killed = "import os; print('last words', flush=True); os.kill(os.getpid(), 9)"
    assert study._run(python(killed), "a", child) == "killed by SIGKILL; its last line: last words"
    assert study._run(python("exit(3)"), "a", child) == "exit code 3"


@pytest.mark.slow
def test_a_signal_goes_to_the_row(tmp_path):
    """The row ends in its own time, then the study does."""
    path, saved = write_study(tmp_path, ["gpt2"]), tmp_path / "saved"
    row = (
        "import pathlib, signal, sys\n"
        f"def stop(*_): pathlib.Path({str(saved)!r}).touch(); print('saved'); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, stop)\nprint('ready', flush=True)\nsignal.pause()"
    )
    code = (
        "import sys\nfrom jaxpt import study\nrun = study._run\n"
        f"study._run = lambda command, *rest: run([sys.executable, '-c', {row!r}], *rest)\n"
        f"sys.exit(study.study({str(path)!r}))"
    )
    started = subprocess.Popen(python(code), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    read_until(started, "ready")
    started.send_signal(signal.SIGTERM)
    output = started.communicate(timeout=60)[0]
    assert started.returncode == 128 + signal.SIGTERM and "[gpt2] saved" in output, output
    assert saved.exists() and table(tmp_path)["gpt2"]["status"] == "not started"


@pytest.fixture
def fake(monkeypatch):
    """Rows do nothing; those named here fail with these words. Gives the names of the rows that were run."""

    def put(**failures):
        ran = []

        def run(command, name, child):
            ran.append(name)
            return failures.get(name, "")

        monkeypatch.setattr(study, "_run", run)
        return ran

    return put


def test_a_row_that_fails_does_not_stop_the_others(tmp_path, fake):
    path = write_study(tmp_path, ["gpt2", "t5", "bert"])
    ran = fake(gpt2="the disk is full", t5="out of memory")
    assert study.study(str(path)) == 1
    assert ran == ["gpt2", "t5", "bert"]
    status = {name: row["status"] for name, row in table(tmp_path).items()}
    assert status == {"gpt2": "failed: the disk is full", "t5": "failed: out of memory", "bert": "not started"}
    assert study.study(str(path), table=True) == 0
    assert {name: row["status"] for name, row in table(tmp_path).items()} == status, "what was known is kept"
    ran = fake(gpt2="the disk is full")
    assert study.study(str(path), stop=True) == 1 and ran == ["gpt2"]


MISTAKES = {
    "train.stepz": (3, "unknown key train.stepz; did you mean train.steps?"),
    "data.path": ("gone.txt", "data.path: gone.txt: no such file"),
    "data.tokenizer.path": ("gone.json", "gone.json: no such vocabulary file"),
}


@pytest.mark.parametrize("key", MISTAKES)
def test_all_rows_are_checked_before_the_first_starts(tmp_path, fake, key):
    path = write_study(tmp_path, ["gpt2", "t5"])
    tree = yaml.safe_load(path.read_text())
    value, words = MISTAKES[key]
    tree["rows"][1]["set"] = {key: value}
    path.write_text(yaml.safe_dump(tree))
    ran = fake()
    with pytest.raises(UserError, match=re.escape(f"{path}: row t5: {words}")):
        study.study(str(path))
    assert ran == [] and not (tmp_path / "study").exists()
    tree["rows"][1]["set"]["init_from.path"] = "{study}/gpt2"  # which is there later
    path.write_text(yaml.safe_dump(tree))
    study.study(str(path))
    assert ran[0] == "gpt2"


def test_a_model_that_is_there_has_no_recipe_to_check(tmp_path):
    plan = load_study(write_study(tmp_path, ["gpt2"]))
    study._check(plan, StudyRow(name="ready", model="hf/bert"), "row ready")


def test_one_study_at_a_time(tmp_path, fake):
    path = write_study(tmp_path, ["gpt2"])
    ran = fake()
    (tmp_path / "study").mkdir()
    with hold(tmp_path / "study"), pytest.raises(UserError, match="is running there"):
        study.study(str(path))
    assert ran == []


def test_a_row_that_went_too_far(tmp_path, fake):
    plan = load_study(write_study(tmp_path, ["gpt2"], tokens=100))
    config = configs.load(plan.rows[0].recipe, plan.overrides(plan.rows[0]))
    run_dir = Path(config.run_dir)
    run_dir.mkdir(parents=True)
    (run_dir / "config.yaml").write_text(configs.to_yaml(config))
    receipt = {"finished": True, "text_tokens_per_step": 10.0}
    (run_dir / "run.json").write_text(json.dumps(receipt | {"step": 10}))
    assert study.finished(plan, config) == 10
    (run_dir / "run.json").write_text(json.dumps(receipt | {"step": 9}))
    assert study.finished(plan, config) is None
    (run_dir / "run.json").write_text(json.dumps(receipt | {"step": 11}))
    with pytest.raises(UserError, match="was trained for 11 steps, but the study requires 10"):
        study.finished(plan, config)
    assert study.finished(plan, config.model_copy(update={"seed": 5})) is None, "the trainer says why"


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(study)
    assert tried and not failed
