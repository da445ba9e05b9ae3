"""The command line: help at once, one line and exit code 2 for a mistake, and each command as it is."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml

from jaxpt import cli
from jaxpt import config as configs
from jaxpt.cli import commands, table
from jaxpt.config import load
from jaxpt.data import tokenizers
from jaxpt.errors import RetryableError, UserError
from jaxpt.plan import program, topologies
from tests import families
from tests.plan.test_roofline import MEASURED

ROOT = Path(__file__).parents[2]
RECIPE = str(ROOT / "configs" / "smoke" / "bert_tiny.yaml")
COMMANDS = [
    ["train"],
    ["eval"],
    ["generate"],
    ["chat"],
    ["embed"],
    ["neighbours"],
    ["sts"],
    ["inspect"],
    ["data"],
    ["plan"],
    ["cache"],
    ["study"],
    ["probe"],
    ["tokenizer"],
    ["tokenizer", "train"],
    ["tokenizer", "inspect"],
    ["verify"],
    ["predict"],
    ["import"],
    ["export"],
    ["doctor"],
    ["schema"],
]


@pytest.fixture
def fake(monkeypatch):
    """Puts a module in place of one that a command imports, to raise what the command line has to answer.

    What a command does is tested by running it.
    """

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


def test_words_are_utf_8_in_any_locale():
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-c", "from jaxpt import cli; cli.start()", "schön"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, env=os.environ | locale)
    assert done.returncode == 2 and b"'sch\\xf6n'" in done.stderr, done.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_command_has_help_with_examples(capsys, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = run(capsys, *command, "--help")
    assert code == 0
    assert not [line for line in out.splitlines() if len(line) > 100]
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


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        ("neighbours run --corpus t.txt 'a *b*'", {"query": "a *b*", "corpus": "t.txt"}),
        ("neighbours run 'a *b*' --corpus t.txt", {"query": "a *b*", "corpus": "t.txt"}),
        ("tokenizer inspect --debug words 'the cat'", {"path": "words", "text": "the cat"}),
        ("runs --json runs/old", {"directory": "runs/old"}),
        ("schema --write configs study", {"kind": "study"}),
        ("predict run --out p.csv - task.text=x", {"file": "-", "overrides": ["task.text=x"]}),
        ("predict run a.csv --out p.csv task.text=x", {"file": "a.csv", "overrides": ["task.text=x"]}),
        ("predict run --out p.csv", {"overrides": []}),
        ("train a.yaml train.steps=2 --timings data.length=8", {"overrides": ["train.steps=2", "data.length=8"]}),
    ],
)
def test_arguments_that_may_be_left_out_stand_before_and_behind_options(argv, found):
    arguments = vars(commands.parser().parse(shlex.split(argv)))
    assert {name: arguments[name] for name in found} == found
    assert ("file" in arguments) == ("file" in found)


@pytest.mark.parametrize("command", ["train", "inspect", "plan", "cache"])
def test_what_is_dropped_is_said(capsys, monkeypatch, command):
    names = {"train": "train.loop", "inspect": "report.inspect", "plan": "plan.command", "cache": "report.caches"}
    functions = {command: lambda *args, **kwargs: None}
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
    ("argv", "resumes"),
    [
        ("train r.yaml", True), ("study s.yaml", True), ("cache r.yaml", True), ("plan r.yaml", False),
        ("data r.yaml", False), ("eval run", False), ("eval run --tasks piqa", True), ("generate run", False),
        ("generate run --file f.txt --out g.jsonl", True), ("tokenizer train r.yaml --out v", False),
    ],
)  # fmt: skip
def test_a_command_that_a_signal_stops_says_whether_it_resumes(monkeypatch, argv, resumes):
    told = []
    monkeypatch.setattr(commands, "_run", lambda arguments: 0)
    monkeypatch.setattr(commands.signals, "set_resumable", told.append)
    assert cli.main(argv.split()) == 0 and told == [resumes]


@pytest.mark.parametrize(("argv", "same"), [(["help"], ["--help"]), (["help", "eval"], ["eval", "--help"])])
def test_help_is_a_word_too(capsys, argv, same):
    assert run(capsys, *argv) == run(capsys, *same)


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["trian"], "unknown command 'trian'; did you mean train?"),
        (["resume", "runs/x"], "unknown command 'resume'; did you mean train?"),
        (["config"], "jaxpt: unknown command 'config'; see jaxpt --help"),
        (["tokenizer", "trian"], "'trian' is none; did you mean train?"),
        (["plan", RECIPE, "--search", "--save", "x", "--price", "2"],
         "--search goes with --topology, --slices and --json; leave out --save, --price"),
        (["plan", RECIPE, "--decode", "8x16", "--watts", "9"], "and --json; leave out --watts"),
        (["train"], "the following arguments are required: CONFIG; see jaxpt train --help"),
        (["embed", "run"], "the following arguments are required: FILE, --out; see jaxpt embed --help"),
        (["study"], "the following arguments are required: STUDY; see jaxpt study --help"),
        (["train", "x.yaml", "--fast"], "jaxpt train: unknown argument '--fast'; see jaxpt train --help"),
        (["plan", "x.yaml", "--shrdings"], "'--shrdings'; did you mean --shardings or --slices?; see jaxpt plan"),
        (["doctor", "now"], "doctor: unknown argument 'now'"),
        (["neighbours", "run", "-k", "2", "a *b*", "c"], "neighbours: unknown argument 'c'"),
        (["neighbours", "run", "--field", "x", "a *b*", "--feild"], "argument '--feild'; did you mean --field"),
        (["schema", "--write", "x", "studdy"], "'studdy' is none; did you mean study?"),
        (["inspect", RECIPE, "-n", "0"], "argument -n: expected a positive integer, got '0'"),
        (["eval", RECIPE, "--tasks", ","], "argument --tasks: expected names such as a,b, got ','"),
        (["inspect", RECIPE, "--at", "-1"], "argument --at: expected an index ≥ 0, got '-1'"),
        (["inspect", RECIPE, "--split", "test"], "invalid choice: 'test'"),
        (["tokenizer", "train", RECIPE], "the following arguments are required: --out"),
        (["train", "gone.yaml"], "gone.yaml: No such file or directory"),
        (["train", RECIPE, "train.stepz=1"], "command line: unknown key train.stepz; did you mean train.steps?"),
        (["inspect", RECIPE, "-n", "2", "train.stepz=1"], "command line: unknown key train.stepz"),
        (["tokenizer", "inspect", "gone"], "gone"),
        (["tokenizer", "inspect", "gone", "a\udcffb"], "TEXT: not UTF-8"),
        (["export", "run", "gs://b/x"], "OUT: gs://b/x: is an address; files are written to mounted file systems"),
        (["report", "run", "--out", "gs://b/x.html"], "argument --out: gs://b/x.html: is an address"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_code_2(capsys, argv, answer):
    code, out, err = run(capsys, *argv)
    assert code == 2
    assert err.startswith("jaxpt") and err.count("\n") == 1 and err.endswith("\n")
    assert answer in err
    assert not out


@pytest.mark.parametrize(
    ("error", "expected", "answer"),
    [
        (UserError("data.path: no file\nmatches"), 2, "jaxpt: data.path: no file matches\n"),
        (RetryableError("process 1 is gone"), 75, "jaxpt: process 1 is gone\n"),
        (OSError(28, "No space left on device", "runs/x"), 74, "jaxpt: runs/x: No space left on device\n"),
        (PermissionError(13, "Permission denied"), 2, "jaxpt: Permission denied\n"),
        (OSError("odd"), 2, "jaxpt: odd\n"),
        (
            ModuleNotFoundError("No module named 'wandb'", name="wandb"),
            2,
            "jaxpt: the Python package 'wandb' is not *\n",
        ),
    ],
)
def test_errors_of_a_command(capsys, fake, error, expected, answer):
    def train(config, timings):
        raise error

    fake("jaxpt.train.loop", train=train)
    code, _, err = run(capsys, "train", RECIPE)
    assert code == expected
    assert err.startswith(answer.partition("*")[0]) and err.count("\n") == 1
    for argv in (["--debug", "train", RECIPE], ["train", RECIPE, "--debug"]):
        with pytest.raises(type(error)):
            cli.main(argv)


@pytest.mark.parametrize("name", ["jaxpt.gone", "json.gone"])  # json is imported: it is installed
def test_a_defect_is_not_hidden(fake, name):
    def train(config, timings):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    fake("jaxpt.train.loop", train=train)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["train", RECIPE])


# ---- commands, as they are ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A directory with a small text and a recipe for it, whose vocabulary and records are cached there."""
    folder = tmp_path_factory.mktemp("lab")
    text = (f"Document {i} says that the cat sat on mat {i % 7} and the dog ran to house {i % 5}." for i in range(60))
    (folder / "text.txt").write_text("\n".join(text))
    data = {"path": str(folder / "text.txt"), "cache_dir": str(folder / "cache"), "validation_fraction": 0.1}
    tree = families.tree(
        "gpt2", model={"vocab_size": 300}, data=data | {"length": 16}, mesh={"data": 8}, log={"tensorboard": False},
        run_dir=str(folder / "run"),
    )  # fmt: skip
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    return folder


@pytest.mark.slow  # tests/train/test_loop.py trains and evaluates by the command line, too
def test_train_eval_and_probe(capsys, lab):
    recipe, run_dir = str(lab / "recipe.yaml"), str(lab / "run")
    rows = "".join(f"the {name} sat,{name}\n" for name in ("cat", "dog") for _ in range(8))
    (lab / "labelled.csv").write_text(f"text,label\n{rows}")
    paths = f"path: {lab}/labelled.csv, test_path: {lab}/labelled.csv"
    probes = f"{{kind: probe, {paths}, every: 1}}, {{kind: probe, name: end, {paths}, every: end}}"
    evals = f"evals=[{{kind: heldout}}, {probes}]"
    assert run(capsys, "train", recipe, "train.steps=2", "seed=4", evals)[0] == 0
    config = configs.load(run_dir)
    assert (config.train.steps, config.seed, config.run_dir) == (2, 4, run_dir)
    assert (lab / "run" / "checkpoints" / "2").is_dir()
    records = [json.loads(line) for line in (lab / "run" / "metrics.jsonl").read_text().splitlines()]
    receipt = json.loads((lab / "run" / "run.json").read_text())
    assert [r["step"] for r in records if "probe/accuracy" in r] == [1, 2]
    assert receipt["probe"] == receipt["end"] == {"accuracy": 1.0, "most_frequent": 0.5}
    code, out, _ = run(capsys, "eval", run_dir, "data.batch_size=16")
    assert code == 0 and "step 2" in out and "loss" in out
    code, out, _ = run(capsys, "probe", run_dir, f"path={lab}/labelled.csv", f"test_path={lab}/labelled.csv")
    assert code == 0 and "1.000" in out.replace("100.0%", "1.000")


def test_cache(capsys, lab):
    recipe = str(lab / "recipe.yaml")
    code, out, _ = run(capsys, "cache", recipe, "--workers", "2", "data.length=12")
    assert code == 0 and "train: " in out and str(lab / "cache" / "records") in out and "checksum" not in out
    code, out, _ = run(capsys, "cache", recipe, "--verify", "data.length=12")
    assert code == 0 and "every checksum compared" in out
    if importlib.util.find_spec("apache_beam") is None:
        batches = ("--batches", "1", "--out", str(lab / "batches"))
        for words in ((), batches):
            code, _, err = run(capsys, "cache", recipe, *words, "--beam=--runner=DirectRunner", "data.length=14")
            assert code == 2 and "--beam needs Apache Beam" in err


def test_inspect_takes_overrides_before_and_after_options(capsys, lab):
    recipe, page = str(lab / "recipe.yaml"), lab / "page.html"
    first = run(capsys, "inspect", recipe, "-n", "1", "--at", "2")
    options = "-n 2 --at 1 --split train"
    code, out, _ = run(capsys, "inspect", recipe, "data.batch_size=16", *options.split(), "train.steps=9")
    assert code == 0
    assert "causal LM, examples 1–2 of train\n" in out and re.findall(r"\n\n.*example (\d) ", out) == ["1", "2"]
    assert "causal LM, example 2 of train\n" in first[1]
    assert first[0] == 0 and first[1].partition("example 2 ─")[2] == out.partition("example 2 ─")[2] != ""
    assert run(capsys, "inspect", recipe, "--split", "validation", "--phase", "1", "--html", str(page))[0] == 0
    assert "validation" in page.read_text()
    code, _, err = run(capsys, "inspect", recipe, "--phase", "2", "seed=1")
    assert code == 2 and "--phase 2" in err


@pytest.mark.parametrize(
    ("kind", "option", "special"),
    [("wordpiece", "lowercase=true", "[MASK]"), ("bpe", "", "<|endoftext|>"), ("sentencepiece", "extra_ids=5", "</s>")],
)
def test_tokenizer(capsys, lab, kind, option, special):
    out_dir = str(lab / kind)
    settings = [f"data.tokenizer.{option}" for option in (f"kind={kind}", "vocab_size=290", option) if option]
    code, out, _ = run(capsys, "tokenizer", "train", str(lab / "recipe.yaml"), *settings, "--out", out_dir)
    tokenizer = tokenizers.load(out_dir, kind)
    size = tokenizer.vocabulary.size
    assert (code, out) == (0, f"wrote {out_dir}: {kind}, {size:,} ids\n") and 40 < size <= 290
    code, out, err = run(capsys, "tokenizer", "inspect", out_dir)
    assert code == 0 and not err and out.startswith(f"{out_dir}: {kind}\n")
    assert re.search(rf"size\W+{size}\b", out) and special in out and "decoded" not in out
    code, out, _ = run(capsys, "tokenizer", "inspect", out_dir, "the cat sat [red]")
    ids = tokenizer.encode("the cat sat [red]")
    assert code == 0 and f"{len(ids)} tokens; decoded: {tokenizer.decode(ids)}" in out
    assert re.findall(r" (\d+) *$", out.partition("token ")[2], re.MULTILINE) == [str(i) for i in ids]


def test_tokenizer_inspect_says_what_was_assumed(capsys, tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n")
    code, out, _ = run(capsys, "tokenizer", "inspect", str(tmp_path), "THE")
    assert code == 0 and "assumed that it folds case" in out and "decoded: the" in out


@pytest.mark.slow
def test_plan_of_this_machine(capsys, lab):
    """Compiled as a run would be."""
    code, out, _ = run(capsys, "plan", str(lab / "recipe.yaml"), "--json", "--save", str(lab / "steps"), "seed=3")
    assert code == 0 and json.loads(out)["fits"]
    assert list((lab / "steps").iterdir())


def test_plan_of_a_topology(capsys, lab, monkeypatch):
    """Only the compiler of TPUs is not here: what it measures is made up."""
    asked = []

    def measure(config, where, phase=0):
        asked.append((where.topology, where.slices, config.seed))
        return MEASURED

    monkeypatch.setattr(program, "measure", measure)
    monkeypatch.setattr(topologies.Topology, "check_compiler", lambda self: None)
    options = "--topology v5e:4x4 --slices 2 --shardings --price 2.5 --watts 300 --carbon 0.1"
    code, out, _ = run(capsys, "plan", str(lab / "recipe.yaml"), *options.split(), "seed=3")
    assert code == 0 and asked == [("v5e:4x4", 2, 3)]
    assert "$2.50 a chip-hour (--price)" in out and "(--watts)" in out and "(--carbon)" in out


def test_schema_is_json(capsys):
    code, out, _ = run(capsys, "schema")
    assert code == 0
    assert "model" in json.loads(out)["properties"]
    assert "rows" in json.loads(run(capsys, "schema", "study")[1])["properties"]


def test_schemas_are_written(capsys, tmp_path):
    code, out, _ = run(capsys, "schema", "--write", str(tmp_path))
    assert code == 0
    assert {Path(line).name for line in out.splitlines()} == {path.name for path in tmp_path.iterdir()}
    assert {"schema.json", "study.schema.json", "model.schema.json"} == {path.name for path in tmp_path.iterdir()}
    code, _, error = run(capsys, "schema", "--write", str(tmp_path / "none"))
    assert (code, error) == (2, f"jaxpt: --write {tmp_path}/none: no such directory\n")
    code, _, error = run(capsys, "schema", "model", "--write", str(tmp_path))
    assert (code, error) == (2, "jaxpt: --write writes the schemas of all kinds; leave model out\n")
    code, _, error = run(capsys, "schema", "--write", str(tmp_path / "none"))
    assert code == 2 and error.count("\n") == 1 and "none" in error


def test_version(capsys):
    from jaxpt import __version__

    assert run(capsys, "--version")[:2] == (0, f"jaxpt {__version__}\n")


def test_modules_of_the_current_directory_can_be_named(capsys, tmp_path, monkeypatch):
    """The installed script, unlike `python -m`, does not look there by itself."""
    (tmp_path / "my_objective_here.py").write_text("raise RuntimeError('found')")
    (tmp_path / "pkg_here").mkdir()
    (tmp_path / "pkg_here" / "mine.py").write_text("raise RuntimeError('found')")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    assert "RuntimeError: found" in run(capsys, "train", RECIPE, "objective.kind=pkg_here.mine")[2]


def test_a_request_to_save_does_not_end_a_run_that_reads_its_recipe(capsys, tmp_path, monkeypatch):
    (tmp_path / "asked_here").mkdir()
    (tmp_path / "asked_here" / "early.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGUSR1)\nraise RuntimeError('found')"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert "RuntimeError: found" in run(capsys, "train", RECIPE, "objective.kind=asked_here.early")[2]


@pytest.mark.slow
def test_closed_pipe_is_silent():
    command = f"{sys.executable} -m jaxpt schema | head -c 10"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout and not done.stderr


# ---- the script that completes commands in a shell ----------------------------------------------------------------


def _completed(script, *words):
    """What bash offers for the last of some words."""
    line = " ".join(words)
    code = (
        f"source {script}; COMP_WORDS=({line} ''); COMP_CWORD={len(words)}; COMP_LINE='{line} '; "
        'eval "$(complete -p jaxpt | sed -E \'s/.*-F ([^ ]+).*/\\1/\')"; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True)
    return done.stdout.split()


def test_bash_offers_commands(tmp_path, capsys):
    pytest.importorskip("shtab")
    assert cli.main(["completion", "bash"]) == 0
    script = tmp_path / "jaxpt.sh"
    script.write_text(capsys.readouterr().out)
    assert {name.partition(" ")[0] for name in table.COMMANDS} <= set(_completed(script, "jaxpt"))
    assert {"recipe", "study", "model"} <= set(_completed(script, "jaxpt", "schema"))


def test_files_are_completed_where_one_is_written(capsys):
    pytest.importorskip("shtab")
    assert cli.main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    for argument in ("predict___out", "report___out", "neighbours___png", "import_pos_1", "predict_pos_0"):
        assert f"_shtab_jaxpt_{argument}_COMPGEN=_shtab_compgen_files" in script
    assert "_shtab_jaxpt_neighbours__k_COMPGEN" not in script, "a number is no file"


def test_without_the_package_it_says_which(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "zsh"]) == 2
    assert "completion: shtab is not installed: pip install" in capsys.readouterr().err
