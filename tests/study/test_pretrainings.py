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
from jaxpt.config.studies import load_study
from jaxpt.errors import UserError
from jaxpt.study import pace, pretrainings
from jaxpt.train.lock import hold
from tests import families, fine_tuning
from tests.config.helpers import ROOT
from tests.inference.helpers import directory
from tests.study.helpers import names, read_until, statuses, table, write_study
from tests.waiting import LIMIT


@pytest.fixture(scope="module")
def budgets(tmp_path_factory):
    """{family: (steps that a budget of 5,000 tokens gives, the prepared data, its configuration)}"""
    from jaxpt.data import datasets

    tmp_path = tmp_path_factory.mktemp("budgets")
    plan = load_study(write_study(tmp_path, families.FAMILIES, tokens=5000))
    found, prepare, made = {}, datasets.prepare, []

    def noting(*args, **kwargs):
        made.append(prepare(*args, **kwargs))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "prepare", noting)
        for row in plan.rows:
            config = configs.load(row.recipe, plan.overrides(row))
            found[row.name] = pretrainings.budget(plan, config), made.pop(), config
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


# ---- rows without training ------------------------------------------------------------------------------------------


def fails(words):
    return f"print('jaxpt: {words}'); sys.exit(2)"


def test_lines_of_a_row_and_why_it_failed(tmp_path, stand_in, capsys):
    path = write_study(tmp_path, ["gpt2"])
    tree = yaml.safe_load(path.read_text())
    tree["rows"] = [{"name": name, "recipe": "gpt2.yaml"} for name in ("good", "told", "killed", "silent")]
    path.write_text(yaml.safe_dump(tree))
    killed = "import os; print('last words', flush=True); os.kill(os.getpid(), 9)"
    told = "print('jaxpt: too long\\n'); sys.exit(2)"
    stand_in(good="print('one'); print('two [x]')", told=told, killed=killed, silent="sys.exit(3)")
    assert pretrainings.study(str(path)) == 75, "a re-run helps the one that was killed"
    said = capsys.readouterr().out
    assert "\n[good] one\n[good] two [x]\n" in said and "\n[told] failed: too long\n" in said
    why = {"told": "too long", "killed": "killed by SIGKILL; its last line: last words", "silent": "exit code 3"}
    assert statuses(tmp_path) == {"good": "not started"} | {name: f"failed: {words}" for name, words in why.items()}
    written = f"written: {tmp_path}/study/table.md, table.json told failed"
    assert written in " ".join(said.split()), "nothing to draw; a long path breaks the line"
    assert "picture.png" not in (tmp_path / "study" / "table.md").read_text()
    assert said.endswith("".join(f"{name} failed: {words}\n" for name, words in why.items()))
    for row, command, recipe, *overrides in stand_in():
        assert (command, recipe) == ("train", str(tmp_path / "gpt2.yaml"))
        assert any(word.endswith(f'/study/{row}"') for word in overrides)


def test_a_row_with_phases_is_refused_before_the_first_row_starts(tmp_path, stand_in):
    path = write_study(tmp_path, ["gpt2"], tokens=5000)
    tree = yaml.safe_load(path.read_text())
    tree["rows"] += [{"name": "phases", "recipe": "gpt2.yaml", "set": {"train.phases": [{"steps": 3}, {}]}}]
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(UserError, match=r"row phases: .*not supported in a study with tokens"):
        pretrainings.study(str(path))
    assert stand_in() == []


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"tokens": 5000}, "train.steps=50"),
        ({"tokens": 5000}, "grid={train: {steps: [50, 60]}}"),
        ({"minutes": 2}, "train={steps: 50}"),
    ],
)
def test_steps_that_a_budget_gives_are_not_set(tmp_path, stand_in, budget, words):
    """They would have no effect, and the runs of a grid would be the same one."""
    path, (key,) = write_study(tmp_path, ["gpt2"], set={"train.steps": 7}, **budget), budget
    message = f"{'train.steps=50' if 'grid' in words else words}: has no effect: the study's {key} give the steps; set "
    with pytest.raises(UserError, match=re.escape(f"{path}: row gpt2") + ".*: " + re.escape(message)):
        pretrainings.study(str(path), [words])
    assert stand_in() == []
    for others in ({}, {"minutes": 2, "set": {"train.phases": [{"steps": 3}, {}]}}):  # which keep their proportions
        plan = load_study(write_study(tmp_path, ["gpt2"], **others), [words])
        pretrainings._check(plan, plan.rows[0], "here", [words])


class Answers(list):
    """Takes what a process would send."""

    send = list.append


def test_a_mistake_in_ones_own_source_is_a_line(tmp_path, monkeypatch):
    """Not a traceback, nor a process that a re-run would help."""
    (tmp_path / "counting_lab").mkdir()
    (tmp_path / "counting_lab" / "posts.py").write_text("def open_source(data):\n    return 1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plan, recipe = load_study(str(write_study(tmp_path, ["gpt2"], tokens=5000))), str(tmp_path / "gpt2.yaml")
    config = configs.load(recipe, ["data.source=counting_lab.posts", f"run_dir={tmp_path}/run"])
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)
    answers = Answers()
    pretrainings._count(answers, plan, config)
    (error,) = answers
    assert isinstance(error, UserError) and error.exit_code == 2
    assert re.search(r"posts\.py:2: in open_source: ZeroDivisionError", str(error))


class _Child:
    def set(self, pid):
        """Signals would go to it."""


def _failing(answer, plan, config):
    raise ValueError("a defect")


def _killed(answer, plan, config):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("count", "code"), [(_failing, 1), (_killed, 75)])
def test_how_the_process_that_counts_ended(tmp_path, monkeypatch, count, code):
    monkeypatch.setattr(pretrainings, "_count", count)
    with pytest.raises(UserError, match="the process that prepared the data") as raised:
        pretrainings._counted(None, families.config("gpt2"), _Child())
    assert raised.value.exit_code == code


@pytest.mark.slow
def test_text_is_counted_in_a_process_of_its_own(tmp_path, stand_in):
    path = write_study(tmp_path, ["gpt2"], tokens=5000)
    assert pretrainings.study(str(path)) == 0
    ((row, *words),) = stand_in()
    assert row == "gpt2"
    steps = int(words[-1].removeprefix("train.steps="))
    assert 35 < steps < 42, "8 rows of at most 16 tokens a step"


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
        "import sys\nfrom jaxpt.study import pretrainings\n"
        f"pretrainings.PROGRAM = (sys.executable, '-c', {row!r})\n"
        f"sys.exit(pretrainings.study({str(path)!r}))"
    )
    command = [sys.executable, "-c", code]
    started = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    read_until(started, "ready")
    started.send_signal(signal.SIGTERM)
    output = started.communicate(timeout=LIMIT)[0]
    assert started.returncode == 128 + signal.SIGTERM and "[gpt2] saved" in output, output
    assert saved.exists() and statuses(tmp_path)["gpt2"] == "not started"


MEASURED = """
import json, pathlib, sys
words = json.loads(sys.argv[1])
run_dir = pathlib.Path(next(x for x in words["overrides"] if x.startswith("run_dir=")).partition("=")[2].strip('"'))
run_dir.mkdir(parents=True, exist_ok=True)
with open("COUNT", "a") as file:
    print(run_dir.name, file=file)
budget = {"minutes": words["minutes"], "seconds": [0.5], "steps": [int(120 * words["minutes"])], "settings": "SETTINGS"}
(run_dir / "budget.json").write_text(json.dumps(budget))
"""


def test_minutes_are_made_steps_once(tmp_path, stand_in, monkeypatch):
    """A row's own minutes go before the study's; a second start trains the same number of steps without measuring."""
    path = write_study(tmp_path, ["gpt2", "t5"], minutes=2)
    tree = yaml.safe_load(path.read_text())
    tree["rows"][1]["minutes"] = 0.5
    path.write_text(yaml.safe_dump(tree))
    code = MEASURED.replace("COUNT", str(tmp_path / "measured")).replace("SETTINGS", "x")
    monkeypatch.setattr(pretrainings, "PACE", (sys.executable, "-I", "-S", "-c", code))
    monkeypatch.setattr(pace, "digest", lambda config: "x")
    for _ in range(2):
        assert pretrainings.study(str(path)) == 0
        ran = stand_in()
        assert [(row, words[-1]) for row, *words in ran] == [("gpt2", "train.steps=240"), ("t5", "train.steps=60")]
        assert all("train.eval_every=null" in words for _, *words in ran)
        assert (tmp_path / "measured").read_text().split() == ["gpt2", "t5"]
    text = (tmp_path / "study" / "table.md").read_text()
    assert "2 minutes of training steps in each row (t5 0.5)" in text and "| in steps |" in text
    assert pretrainings.study(str(path), ["minutes=1"]) == 0  # nothing was trained: measured again
    assert [words[-1] for _, *words in stand_in()] == ["train.steps=120", "train.steps=30"], "shares are kept"


def test_patience_ends_a_row(tmp_path, stand_in):
    """A run that ended before its last step is finished, if it had these steps and this patience."""
    path = write_study(tmp_path, ["gpt2"])
    plan = load_study(path, ["train.patience=2", "train.steps=50"])
    config = configs.load(plan.rows[0].recipe, plan.overrides(plan.rows[0]))
    write_finished(config, 20)
    assert pretrainings.finished(plan, config) == 20
    for key, value in (("patience", 3), ("patience", None), ("steps", 60)):
        other = config.model_copy(update={"train": config.train.model_copy(update={key: value})})
        assert pretrainings.finished(plan, other) is None


def test_a_row_that_fails_does_not_stop_the_others(tmp_path, stand_in):
    path = write_study(tmp_path, ["gpt2", "t5", "bert"])
    stand_in(gpt2=fails("the disk is full"), t5=fails("out of memory"))
    assert pretrainings.study(str(path)) == 2
    assert names(stand_in()) == ["gpt2", "t5", "bert"]
    status = statuses(tmp_path)
    assert status == {"gpt2": "failed: the disk is full", "t5": "failed: out of memory", "bert": "not started"}
    assert pretrainings.study(str(path), table=True) == 0
    assert statuses(tmp_path) == status, "what was known is kept"
    assert pretrainings.study(str(path), stop=True) == 2 and names(stand_in()) == ["gpt2"]


def test_a_table_imports_nothing_that_a_recipe_names(tmp_path, monkeypatch):
    path = write_study(tmp_path, ["gpt2"])
    (tmp_path / "lab_of_a_study").mkdir()
    (tmp_path / "lab_of_a_study" / "__init__.py").write_text("raise SystemExit('was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    recipe = yaml.safe_load((tmp_path / "gpt2.yaml").read_text())
    (tmp_path / "gpt2.yaml").write_text(yaml.safe_dump(recipe | {"objective": {"kind": "lab_of_a_study.mine"}}))
    assert pretrainings.study(str(path), table=True) == 0
    assert table(tmp_path)["gpt2"]["objective"] == "lab_of_a_study.mine"


MISTAKES = {
    "train.stepz": (3, "unknown key train.stepz; did you mean train.steps?"),
    "data.path": ("gone.txt", "data.path: gone.txt: no such file"),
    "data.tokenizer.path": ("gone.json", "gone.json: no such vocabulary file"),
}


@pytest.mark.parametrize("key", MISTAKES)
def test_all_rows_are_checked_before_the_first_starts(tmp_path, stand_in, key):
    path = write_study(tmp_path, ["gpt2", "t5"])
    tree = yaml.safe_load(path.read_text())
    value, words = MISTAKES[key]
    tree["rows"][1]["set"] = {key: value}
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(UserError, match=re.escape(f"{path}: row t5: {words}")):
        pretrainings.study(str(path))
    assert stand_in() == [] and not (tmp_path / "study").exists()
    tree["rows"][1]["set"]["init_from.path"] = "{study}/gpt2"  # which is there later
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(UserError, match=re.escape(f"{path}: row t5: {words}")):
        pretrainings.study(str(path))
    assert stand_in() == []


def write_tuned(tmp_path, origin, **settings):
    """A recipe of fine-tuning without a model."""
    fine_tuning.write(tmp_path / "rows.jsonl", fine_tuning.rows(20))
    tuned = {
        "init_from": {"path": origin},
        "data": {"path": str(tmp_path / "rows.jsonl"), "length": 16},
        "task": {"kind": "classification", "text": "text", "label": "label"},
        "train": {"steps": 2},
        "optimizer": {"kind": "adamw", "learning_rate": 1e-3},
    }
    (tmp_path / "tuned.yaml").write_text(yaml.safe_dump(tuned))
    return {"name": "tuned", "recipe": "tuned.yaml", "set": settings}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("optimizr.learning_rate", 0.5, "unknown key optimizr; did you mean optimizer?"),
        ("train.steps", "many", "train.steps: wants a whole number"),
        ("model.layerz", 3, "unknown key model.layerz of kind bert; did you mean model.layers?"),
        ("data.path", "gone.jsonl", "gone.jsonl: no such file"),
        ("train.log_every", 1, None),
    ],
)
def test_a_row_that_takes_its_model_from_one_before_it_is_checked_as_if_that_were_trained(
    tmp_path, stand_in, key, value, words
):
    """Two rows before it: the second one's recipe has no model, either."""
    path = write_study(tmp_path, ["bert"])
    tree = yaml.safe_load(path.read_text())
    second = write_tuned(tmp_path, "", **{"init_from.path": "{study}/bert"})
    third = second | {"name": "third", "set": {"init_from": {"path": "{study}/tuned"}, key: value}}
    third["set"]["data.tokenizer.path"] = "{study}/tuned/tokenizer"
    path.write_text(yaml.safe_dump(tree | {"rows": [*tree["rows"], second, third]}))
    if words is None:
        pretrainings._check(plan := load_study(path), plan.rows[-1], "here")
        return
    with pytest.raises(UserError, match=f"row third: .*{re.escape(words)}"):
        pretrainings.study(str(path))
    assert stand_in() == []


def test_a_row_is_not_started_where_one_that_it_begins_from_failed(tmp_path, stand_in, capsys):
    path = write_study(tmp_path, ["gpt2"])
    tree = yaml.safe_load(path.read_text())
    sets = {"a": {}, "b": {"init_from.path": "{study}/a"}, "c": {"init_from.path": "{study}/b"}, "d": {}}
    tree["rows"] = [{"name": name, "recipe": "gpt2.yaml", "set": settings} for name, settings in sets.items()]
    path.write_text(yaml.safe_dump(tree))
    killed = "import os; os.kill(os.getpid(), 9)"
    stand_in(a=killed)
    assert pretrainings.study(str(path), parallel=2) == 75
    assert sorted(names(stand_in())) == ["a", "d"]
    lines = capsys.readouterr().out.splitlines()
    assert "[b] not started: it begins from a, which failed" in lines
    assert "[c] not started: it begins from b, which failed" in lines
    assert statuses(tmp_path)["b"] == "failed: not started: it begins from a, which failed"
    assert statuses(tmp_path)["d"] == "not started", "its process did nothing"
    config = configs.load(tmp_path / "gpt2.yaml", (plan := load_study(path)).overrides(plan.rows[1]))
    write_finished(config, config.train.steps)
    stand_in(a=killed, c="")
    assert pretrainings.study(str(path)) == 75
    assert "[b] is finished at step" in capsys.readouterr().out and names(stand_in()) == ["a", "c", "d"]


def write_finished(config, step):
    """What a finished row leaves."""
    run_dir = Path(config.run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.yaml").write_text(configs.to_yaml(config))
    receipt = {"finished": True, "step": step, "text_tokens_per_step": 1.0, "parameters": 9, "wall_seconds": 1.0}
    drawn = dict.fromkeys(("tokenizer", "transforms", "packing", "length", "phase"))
    receipt["data"] = {"fingerprint": {"records": {}, **drawn}}
    (run_dir / "run.json").write_text(json.dumps(receipt))


def test_rows_do_not_share_a_copy(tmp_path, stand_in):
    path = write_study(tmp_path, ["gpt2", "t5"])
    tree = yaml.safe_load(path.read_text()) | {"set": {"checkpoint.copy_to": str(tmp_path / "copy")}}
    path.write_text(yaml.safe_dump(tree))
    words = f"checkpoint.copy_to: {tmp_path / 'copy'} is that of gpt2 and of t5; each wants its own: "
    with pytest.raises(UserError, match=re.escape(f"{path}: {words}checkpoint.copy_to={tmp_path / 'copy'}/{{row}} in")):
        pretrainings.study(str(path))
    assert stand_in() == [] and not (tmp_path / "study").exists()
    assert pretrainings.study(str(path), [f"checkpoint.copy_to={tmp_path}/copy/{{row}}"]) == 0
    places = {words[0]: [word for word in words if "copy_to" in word][-1] for words in stand_in()}
    assert places == {row: f"checkpoint.copy_to={tmp_path}/copy/{row}" for row in ("gpt2", "t5")}


def test_a_grid_needs_no_seeds(tmp_path, stand_in):
    path = write_study(tmp_path, ["gpt2"])
    tree = yaml.safe_load(path.read_text()) | {"grid": {"optimizer.learning_rate": [1e-3, 3e-3]}}
    path.write_text(yaml.safe_dump(tree))
    assert pretrainings.study(str(path)) == 0
    assert names(stand_in()) == ["gpt2-learning_rate=0.001", "gpt2-learning_rate=0.003"]


def test_a_recipe_may_leave_its_model_to_what_it_starts_from(tmp_path, stand_in):
    """As `jaxpt train` reads it: one of fine-tuning is a row as well."""
    path = write_study(tmp_path, ["gpt2"])
    tree = yaml.safe_load(path.read_text()) | {"rows": [write_tuned(tmp_path, str(directory("bert")))]}
    path.write_text(yaml.safe_dump(tree))
    assert pretrainings.study(str(path)) == 0 and names(stand_in()) == ["tuned"]


def test_a_model_that_is_there_has_no_recipe_to_check(tmp_path, stand_in):
    path = write_study(tmp_path, ["gpt2"])
    tree = yaml.safe_load(path.read_text())
    tree["rows"] = [{"name": "ready", "model": "hf/bert"}, *tree["rows"]]
    path.write_text(yaml.safe_dump(tree))
    assert pretrainings.study(str(path)) == 0
    assert names(stand_in()) == ["gpt2"] and list(statuses(tmp_path)) == ["gpt2"], "nor is it trained"


def test_a_study_may_train_no_row(tmp_path, stand_in):
    """All its models are there, as in configs/studies/transfer_full.yaml."""
    path = write_study(tmp_path, [])
    tree = yaml.safe_load(path.read_text()) | {"rows": [{"name": "ready", "model": "hf/bert"}]}
    path.write_text(yaml.safe_dump(tree))
    assert pretrainings.study(str(path)) == 0
    assert stand_in() == [] and (tmp_path / "study" / "table.md").exists()


def test_one_study_at_a_time(tmp_path, stand_in):
    path = write_study(tmp_path, ["gpt2"])
    (tmp_path / "study").mkdir()
    with hold(tmp_path / "study"), pytest.raises(UserError, match="is running there"):
        pretrainings.study(str(path))
    assert stand_in() == []


def test_a_row_that_went_too_far(tmp_path):
    plan = load_study(write_study(tmp_path, ["gpt2"], tokens=100))
    config = configs.load(plan.rows[0].recipe, plan.overrides(plan.rows[0]))
    run_dir = Path(config.run_dir)
    run_dir.mkdir(parents=True)
    (run_dir / "config.yaml").write_text(configs.to_yaml(config))
    receipt = {"finished": True, "text_tokens_per_step": 10.0}
    (run_dir / "run.json").write_text(json.dumps(receipt | {"step": 10}))
    assert pretrainings.finished(plan, config) == 10
    (run_dir / "run.json").write_text(json.dumps(receipt | {"step": 9}))
    assert pretrainings.finished(plan, config) is None
    (run_dir / "run.json").write_text(json.dumps(receipt | {"step": 11}))
    with pytest.raises(UserError, match="was trained for 11 steps, but the study requires 10"):
        pretrainings.finished(plan, config)
    assert pretrainings.finished(plan, config.model_copy(update={"seed": 5})) is None, "the trainer says why"


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(pretrainings)
    assert tried and not failed
