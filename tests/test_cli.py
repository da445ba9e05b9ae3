"""The command line: help at once, one line and exit code 2 for a mistake, the right call with the right arguments."""

import json
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest

from jaxpt import cli
from jaxpt.config import load
from jaxpt.errors import UserError

ROOT = Path(__file__).parents[1]
RECIPE = str(ROOT / "configs" / "smoke" / "bert_tiny.yaml")
COMMANDS = [
    ["train"],
    ["eval"],
    ["inspect"],
    ["plan"],
    ["cache"],
    ["study"],
    ["probe"],
    ["tokenizer"],
    ["tokenizer", "train"],
    ["tokenizer", "inspect"],
    ["doctor"],
    ["schema"],
]


@pytest.fixture
def fake(monkeypatch):
    """Puts a module in place of one that a command imports when it runs."""

    def put(name, **functions):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(**functions))

    return put


def run(capsys, *argv):
    """(exit code, stdout, stderr)"""
    try:
        code = cli.main(argv)
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_help_loads_nothing_heavy():
    """What `jaxpt --help` imports is what decides how fast it answers."""
    code = (
        "import sys\nfrom jaxpt.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit as stop: assert stop.code == 0\n"
        "heavy = {'jax', 'flax', 'pydantic', 'yaml', 'numpy', 'rich', 'tensorflow', 'seqio'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for command in ("train", "eval", "inspect", "tokenizer", "doctor", "schema"):
        assert command in done.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_command_has_help_with_examples(capsys, command):
    code, out, _ = run(capsys, *command, "--help")
    assert code == 0
    assert "--debug" in out or command == ["tokenizer"]
    assert f"jaxpt {' '.join(command)}" in out.partition("examples:" if command != ["tokenizer"] else "usage:")[2]


def test_the_examples_of_the_help_are_right(capsys, monkeypatch):
    """Each recipe loads with what is set over it, and nothing of it is dropped."""
    monkeypatch.chdir(ROOT)
    helps = [
        run(capsys, *command, "--help")[1] for command in ([], ["train"], ["inspect"], ["plan"], ["cache"], ["eval"])
    ]
    examples = [
        shlex.split(line, comments=True)[2:] for text in helps for line in text.splitlines() if " configs/" in line
    ]
    for recipe, *words in examples:
        overrides = [word for word in words if "=" in word and not word.startswith("-")]
        load(recipe, overrides, report=pytest.fail)
    assert len(examples) > 12


@pytest.mark.parametrize("command", ["train", "inspect", "plan", "cache"])
def test_what_is_dropped_is_said(capsys, monkeypatch, command):
    names = {"train": "train.loop", "inspect": "report.batches", "plan": "plan.command", "cache": "report.caches"}
    functions = {command: lambda *args, **kwargs: None, "Assumptions": lambda: None}
    monkeypatch.setitem(sys.modules, f"jaxpt.{names[command]}", types.SimpleNamespace(**functions))
    code, out, error = run(capsys, command, RECIPE, "train.steps=200")
    assert (code, out) == (0, "")
    assert error.startswith(
        "jaxpt: note: command line: train.steps: the run ends at step 200, in phase 1 of 2; dropped: "
    )
    code, _, error = run(capsys, command, RECIPE, "data.length=48")
    assert code == 2 and error.startswith("jaxpt: command line: data.length: 48 has no effect in phase 1 (16) and ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["trian"], "invalid choice: 'trian'"),
        (["train"], "the following arguments are required: CONFIG"),
        (["train", "x.yaml", "--fast"], "train: unknown argument '--fast'"),
        (["doctor", "now"], "doctor: unknown argument 'now'"),
        (["inspect", RECIPE, "-n", "0"], "argument -n: wants a whole number above 0, got '0'"),
        (["inspect", RECIPE, "--at", "-1"], "argument --at: wants an index from 0, got '-1'"),
        (["inspect", RECIPE, "--split", "test"], "invalid choice: 'test'"),
        (["tokenizer", "train", RECIPE], "the following arguments are required: --out"),
        (["train", "gone.yaml"], "gone.yaml: No such file or directory"),
        (["train", RECIPE, "train.stepz=1"], "command line: unknown key train.stepz; did you mean steps?"),
        (["inspect", RECIPE, "-n", "2", "train.stepz=1"], "command line: unknown key train.stepz"),
        (["tokenizer", "inspect", "gone"], "gone"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_code_2(capsys, argv, answer):
    code, out, err = run(capsys, *argv)
    assert code == 2
    assert err.startswith("jaxpt") and err.count("\n") == 1 and err.endswith("\n")
    assert answer in err
    assert not out


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (UserError("data.path: no file\nmatches"), "jaxpt: data.path: no file matches\n"),
        (OSError(28, "No space left on device", "runs/x"), "jaxpt: runs/x: No space left on device\n"),
        (PermissionError(13, "Permission denied"), "jaxpt: Permission denied\n"),
        (OSError("odd"), "jaxpt: odd\n"),
        (ModuleNotFoundError("No module named 'wandb'", name="wandb"), "jaxpt: the Python package 'wandb' is not *\n"),
    ],
)
def test_errors_of_a_command(capsys, fake, error, answer):
    def train(config):
        raise error

    fake("jaxpt.train.loop", train=train)
    code, _, err = run(capsys, "train", RECIPE)
    assert code == 2
    assert err.startswith(answer.partition("*")[0]) and err.count("\n") == 1
    for argv in (["--debug", "train", RECIPE], ["train", RECIPE, "--debug"]):
        with pytest.raises(type(error)):
            cli.main(argv)


def test_a_defect_is_not_hidden(fake):
    def train(config):
        raise ModuleNotFoundError("No module named 'jaxpt.gone'", name="jaxpt.gone")

    fake("jaxpt.train.loop", train=train)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["train", RECIPE])


def test_cache(capsys, fake):
    seen = []
    fake("jaxpt.report.caches", cache=lambda config, *rest: seen.append((config.seed, *rest)))
    assert run(capsys, "cache", RECIPE, "--workers", "3", "seed=4")[0] == 0
    assert run(capsys, "cache", RECIPE, "--verify")[0] == 0
    assert run(capsys, "cache", RECIPE, "--beam=--runner=DirectRunner")[0] == 0
    assert seen == [(4, 3, False, None), (0, None, True, None), (0, None, False, "--runner=DirectRunner")]


def test_plan(capsys, fake):
    seen = []
    given = lambda **kwargs: kwargs  # noqa: E731
    fake("jaxpt.plan.command", Assumptions=given, plan=lambda config, *rest, **kwargs: seen.append((rest, kwargs)))
    assert run(capsys, "plan", RECIPE)[0] == 0
    options = "--topology v5e:4x4 --slices 2 --json --shardings --search --price 2.5 --save steps"
    assert run(capsys, "plan", RECIPE, *options.split())[0] == 0
    assert [rest for rest, _ in seen] == [(None, None), ("v5e:4x4", 2)]
    assert seen[0][1] == {"as_json": False, "shardings": False, "searching": 0, "assumptions": {}, "save": None}
    given = {"as_json": True, "shardings": True, "searching": 12, "assumptions": {"price": 2.5}, "save": "steps"}
    assert seen[1][1] == given


def test_train(capsys, fake):
    seen = []

    def train(config):
        seen.append(config)
        return 128 + 15

    fake("jaxpt.train.loop", train=train)
    assert run(capsys, "train", RECIPE, "train.steps=3", "seed=4")[0] == 143
    assert (seen[0].train.steps, seen[0].seed, seen[0].run_dir) == (3, 4, "runs/bert_tiny")


def test_eval(capsys, fake):
    seen = []
    fake("jaxpt.evals.heldout", evaluate=lambda path, overrides: seen.append((path, overrides)))
    assert run(capsys, "eval", "runs/x", "data.batch_size=3")[0] == 0
    assert seen == [("runs/x", ["data.batch_size=3"])]


def test_inspect_takes_overrides_before_and_after_options(capsys, fake):
    seen = []
    fake("jaxpt.report.batches", inspect=lambda config, **kwargs: seen.append((config, kwargs)))
    options = "-n 3 --at 7 --split validation --phase 2 --html f"
    assert run(capsys, "inspect", RECIPE, "seed=1", *options.split(), "train.steps=9")[0] == 0
    config, kwargs = seen[0]
    assert (config.seed, config.train.steps) == (1, 9)
    assert kwargs == {"count": 3, "at": 7, "split": "validation", "phase": 2, "html": "f"}


def test_tokenizer(capsys, fake):
    seen = []
    fake(
        "jaxpt.report.tokenizers",
        train=lambda config, out: seen.append((config.data.tokenizer.vocab_size, out)),
        inspect=lambda path, text: seen.append((path, text)),
    )
    assert run(capsys, "tokenizer", "train", RECIPE, "data.tokenizer.vocab_size=99", "--out", "d")[0] == 0
    assert run(capsys, "tokenizer", "inspect", "d", "some text")[0] == 0
    assert run(capsys, "tokenizer", "inspect", "d")[0] == 0
    assert seen == [(99, "d"), ("d", "some text"), ("d", None)]


def test_schema_is_json(capsys):
    code, out, _ = run(capsys, "schema")
    assert code == 0
    assert "model" in json.loads(out)["properties"]


def test_version(capsys):
    from jaxpt import __version__

    assert run(capsys, "--version")[:2] == (0, f"jaxpt {__version__}\n")


def test_modules_of_the_current_directory_can_be_named(capsys, fake, tmp_path, monkeypatch):
    """The installed script, unlike `python -m`, does not look there by itself."""
    (tmp_path / "my_objective_here.py").write_text("raise RuntimeError('found')")
    (tmp_path / "pkg_here").mkdir()
    (tmp_path / "pkg_here" / "mine.py").write_text("raise RuntimeError('found')")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    assert "RuntimeError: found" in run(capsys, "train", RECIPE, "objective.kind=pkg_here.mine")[2]


def test_interrupted(capsys, fake):
    def evaluate(path, overrides):
        raise KeyboardInterrupt

    fake("jaxpt.evals.heldout", evaluate=evaluate)
    assert run(capsys, "eval", "runs/x")[0] == 130


@pytest.mark.slow
def test_closed_pipe_is_silent():
    command = f"{sys.executable} -m jaxpt schema | head -c 10"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout and not done.stderr
