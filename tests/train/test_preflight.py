"""What a recipe alone shows to be wrong is said before anything slow is imported or written."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxpt import cli, errors
from jaxpt import config as configs
from jaxpt.errors import UserError
from jaxpt.runtime import plugins
from jaxpt.train import preflight
from tests import families

ROOT = Path(__file__).parents[2]
RECIPE = str(ROOT / "configs/smoke/gpt2_tiny.yaml")


def lm(direction, tmp_path, **options):
    """A recipe of a recurrent language model that starts from `tmp_path`."""
    model = {"kind": "awd_lstm", "vocab_size": 40, "layers": 1, "embed_dim": 8, "hidden_dim": 8}
    tree = {"run_dir": str(tmp_path / "run"), "model": model, "init_from": {"path": str(tmp_path), **options}}
    data = {"path": str(tmp_path / "a.txt"), "validation_path": str(tmp_path / "b.txt"), "tokenizer": {"kind": "words"}}
    return configs.build({**tree, "objective": {"kind": "recurrent_lm", "direction": direction}, "data": data})


@pytest.mark.parametrize(("was", "now"), [("forward", "backward"), ("backward", "forward")])
def test_a_recurrent_model_goes_on_in_its_direction(tmp_path, was, now):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("the cat sat\n")
    (tmp_path / "config.yaml").write_text(configs.with_checksum(configs.to_yaml(lm(was, tmp_path))))
    preflight.check_recipe(lm(was, tmp_path))
    preflight.check_recipe(lm(now, tmp_path, random=True))  # its weights are not taken
    with pytest.raises(
        UserError, match=rf"objective\.direction: {now}, but the model .* reads text {was}; set .*={was}"
    ):
        preflight.check_recipe(lm(now, tmp_path))


def test_objectives_without_a_direction_read_forward(tmp_path):
    """Tags of a backward model would be those of states that it never had."""
    for name in "ab":
        rows = ({"tokens": [f"{name}{n}"], "tags": ["DET"]} for n in range(2))
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    head = {"task": {"kind": "tagging", "labels": ["DET", "NOUN"]}, "objective": {"kind": "tagging"}}
    data = {"path": str(tmp_path / "a.jsonl"), "validation_path": str(tmp_path / "b.jsonl")}
    for was in ("forward", "backward"):
        source = lm(was, tmp_path)
        (tmp_path / "config.yaml").write_text(configs.with_checksum(configs.to_yaml(source)))
        tree = configs.dump(source) | head
        recipe = configs.build(tree | {"data": tree["data"] | data})
        if was == "forward":
            preflight.check_recipe(recipe)
    with pytest.raises(UserError, match=r"objective\.kind: tagging reads text forward, but .* reads text backward"):
        preflight.check_recipe(recipe)


def test_nothing_slow_is_imported():
    code = (
        "import sys\nfrom jaxpt.cli import main\n"
        f"assert main(['train', {RECIPE!r}, 'data.path=missing.txt']) == 2\n"
        "slow = {'tensorflow', 'seqio', 'orbax', 'torch', 'pyarrow'} & set(sys.modules)\n"
        "assert not slow, slow"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr == "jaxpt: data.path: missing.txt: no such file\n"


CASES = {
    "file": (["data.path=gone.txt"], "data.path: gone.txt: no such file"),
    "validation file": (["data.path=a.txt", "data.validation_path=gone.txt"], "data.validation_path: gone.txt"),
    "glob": (["data.path=gone/*.txt"], "data.path: no file matches gone/*.txt"),
    "one of several": (["data.path=[a.txt, gone.txt]"], "data.path: gone.txt: no such file"),
    "task of a mixture": (["data.mixture=[{name: a, path: a.txt}, {name: b, path: gone.txt}]"], "gone.txt"),
    "suffix": (["data.path=a.doc"], "a.doc: the suffix says nothing of the format"),
    "table": (["data.path=a.csv"], "a.csv: a table is no corpus; write its column of texts to .jsonl or"),
    "field of text": (["data.path=a.txt", "data.field=body"], "data.field: body: has no effect on text files; "),
    "test set without a task": (
        ["data.path=a.txt", "data.test_path=b.txt"],
        "data.test_path: is for recipes with a task; `jaxpt eval RUN data.validation_path=…` measures another file",
    ),
    "no path": (["data.source=jsonl"], "data.path is missing: data.source: jsonl needs one"),
    "vocabulary": (["data.tokenizer.path=gone.json"], "gone.json: no such vocabulary file"),
    "family": (["objective={kind: masked_lm}"], "requires a model of family encoder, but model.kind: gpt2"),
    "a later phase": (["train.phases=[{steps: 1}, {set: {data.path: gone.txt}}]"], "data.path: gone.txt"),
    "origin": (["init_from.path=gone"], "init_from.path: gone: no such directory; a model of the hub: hf download"),
    "origin's family": (["init_from.path=hf"], "its model (bert) is of family encoder, model.kind: gpt2 of family dec"),
    "positions": (["data.length=4096", "train.phases=[]"], "data.length: 4096 is beyond the position table"),
    "first lines": (["data.path=broken.jsonl"], "broken.jsonl: line 2: not JSON"),
    "field": (["data.path=rows.jsonl", "data.field=txt"], "rows.jsonl: line 1 (data.field): no column 'txt'; it has"),
    "one file twice": (["data.path=a.txt", "data.validation_path=./a.txt"], "./a.txt: is a file of data.path, too"),
    "a file of two paths": (
        ["data.path=[., ./a.txt]", "data.source=text"],
        "data.path: ./a.txt: is read twice, . and ./a.txt both name it; leave one out",
    ),
    "a file of two validation paths": (
        ["data.path=rows.jsonl", "data.validation_path=['*.txt', a.txt]"], "data.validation_path: a.txt: is read twice"
    ),
    "validation of the built-in corpus": (["data.validation_path=a.txt"], "the built-in corpus has a validation set"),
    "probe's file": (["evals=[{kind: probe, path: gone.csv, test_path: a.csv}]"], "evals.0.path: gone.csv: no such"),
    "probe's column": (
        ["evals=[{kind: probe, path: a.csv, test_path: a.csv, label: mood}]"], "evals.0.path: a.csv: line 2: no column"
    ),
    "similarity's file": (["evals=[{kind: heldout}, {kind: sts, path: gone.tsv}]"], "evals.1.path: gone.tsv: no such"),
    "similarity's columns": (
        ["evals=[{kind: heldout}, {kind: sts, path: a.csv}]"], "evals.1.path: a.csv: line 2: no column 'score'"
    ),
    "harness's task": (["evals=[{kind: harness, tasks: [lambadaa]}]"], "evals.0.tasks: lambadaa: no such task; did"),
    "harness's file": (
        ["evals=[{kind: harness, tasks: [task.yaml]}]"], "give data: DIR, or set: {task.data.path: FILE}"
    ),
    "harness's column": (
        ["evals=[{kind: harness, tasks: [task.yaml], set: {task.data.path: rows.jsonl}}]"],
        "evals.0.tasks: task.yaml: text: rows.jsonl: line 1: ",
    ),
    "harness's form": (
        ["evals=[{kind: heldout}, {kind: harness, tasks: [task.yaml], form: span}]"],
        "evals.1.form: is for encoder-decoders, and gpt2 is a decoder; leave it out",
    ),
    "harness's unit": (
        ["evals=[{kind: harness, tasks: [task.yaml], unit: word}]"],
        "evals.0.unit: is for encoders, and gpt2 is a decoder; leave it out",
    ),
    "compiled": (["train.compiled=gone"], "train.compiled: gone: no such directory"),
    "patience without its metric": (
        ["evals=[{kind: heldout, name: held}]", "train.patience=2"],
        "train.patience: 2 ends no run, since no evaluator that runs during training measures checkpoint.best_metric: "
        "validation/loss; evals has: held",
    ),
    "patience with its metric at the end": (
        ["evals=[{kind: heldout, every: end}]", "train.patience=2"], "validation/loss; evals has: none"
    ),
    "exit without a limit": (
        ["train.stall_exit=true", "train.stall_seconds=null"], "train.stall_exit: true ends no run, since train.stall_s"
    ),
    "offset without decay": (
        ["optimizer.layer_decay_offset=2"], "optimizer.layer_decay_offset: 2 changes no rate, since optimizer.layer_d"
    ),
    "multipliers without decay": (
        ["optimizer.weight_decay=0", "optimizer.decay_multipliers={'*/kernel': 0}"],
        "optimizer.decay_multipliers: changes no decay, since optimizer.weight_decay is 0; set optimizer.weight_decay",
    ),
}  # fmt: skip


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "a.doc"):
        Path(name).write_text("the cat sat\n")
    Path("rows.jsonl").write_text('{"text": "the cat sat"}\n')
    Path("a.csv").write_text("text,label\nthe cat sat,good\n")
    Path("task.yaml").write_text('form: loglikelihood_rolling\ndata: {path: gone.jsonl}\ntext: "{{ txt }}"\n')
    Path("broken.jsonl").write_text('{"text": "the cat sat"}\n{"text": the cat\n')
    Path("hf").mkdir()
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    Path("hf/config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 64, **sizes}))
    return tmp_path


@pytest.mark.parametrize("command", ["train", "inspect"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_said_in_a_line(workplace, capsys, case, command):
    overrides, words = CASES[case]
    assert cli.main([command, RECIPE, "run_dir=runs/x", *overrides]) == 2
    out, err = capsys.readouterr()
    assert words in err and err.count("\n") == 1 and not out
    assert not Path("runs").exists()


def test_a_run_that_began_with_a_file_twice_goes_on_and_a_path_may_be_repeated(workplace, monkeypatch):
    notes, overrides = [], ["run_dir=runs/x", "optimizer.schedule.warmup_steps=0"]
    monkeypatch.setattr(errors, "note", notes.append)
    preflight.check_recipe(configs.load(RECIPE, [*overrides, "data.path=[a.txt, a.txt]"]))
    assert not notes
    twice = configs.load(RECIPE, [*overrides, "data.path=[a.txt, ./a.txt]"])
    with pytest.raises(UserError, match=r"^data\.path: \./a\.txt: is read twice, a\.txt and \./a\.txt both name it"):
        preflight.check_recipe(twice)
    Path("runs/x/checkpoints/1").mkdir(parents=True)
    preflight.check_recipe(twice)
    assert len(notes) == 1 and "is read twice" in notes[0]


def test_a_run_shorter_than_its_warm_up_has_a_shorter_one(workplace, monkeypatch):
    """Of a tenth of the run; the recipe keeps its own, for a resume with more steps."""
    notes = []
    monkeypatch.setattr(errors, "note", notes.append)
    config = configs.load(RECIPE, ["run_dir=runs/x", "data.path=a.txt", "train.steps=20"])
    preflight.check(config)
    assert notes == [
        "optimizer.schedule.warmup_steps: 50 is longer than the run, train.steps is 20; the warm-up takes 2"
    ]
    assert config.optimizer.schedule.warmup_steps == 50
    assert config.optimizer.schedule.within(20).build(1.0, 20)(2) == 1.0


@pytest.mark.parametrize(
    ("every", "evaluations", "keep_best", "is_said"),
    [(5, 3, 1, True), (5, 3, 0, False), (6, 3, 1, False), (3, 6, 1, False)],
)
def test_checkpoints_that_cannot_be_ranked_are_said(workplace, monkeypatch, every, evaluations, keep_best, is_said):
    notes = []
    saves = [f"checkpoint.every={every}", f"train.eval_every={evaluations}", f"checkpoint.keep_best={keep_best}"]
    config = configs.load(RECIPE, ["run_dir=runs/x", "data.path=a.txt", *saves])
    monkeypatch.setattr(errors, "note", notes.append)
    preflight.check(config)
    said = "checkpoint.keep_best: validation/loss is measured every 3 steps, checkpoints are saved every 5: they can be"
    assert notes == [f"{said} ranked every 15 steps alone; checkpoint.every=3 ranks all"] * is_said


def test_the_first_rows_of_a_table_are_read(tmp_path):
    """With the labels given, the training set is not read for them."""
    table = tmp_path / "tickets.csv"
    table.write_text("text,label\nthe bill is wrong,billing\nit does not start,technical\n")
    task = {"kind": "classification", "labels": ["billing", "technical"]}
    wrong = {
        "columns": ({"text": "txt"}, "no column 'txt'"),
        "labels": ({"label": "klass"}, "no column 'klass'"),
        "metric": ({"metrics": ["accuracyy"]}, "accuracyy: a task of kind classification has no such metric"),
    }
    for overrides, words in wrong.values():
        tree = families.tree("bert", task=task | overrides, data={"path": str(table)}, run_dir=str(tmp_path / "run"))
        tree.pop("objective", None)
        with pytest.raises(UserError, match=words):
            preflight.check(configs.build(tree))


def test_a_module_that_was_edited_since_its_import_is_refused(workplace, monkeypatch):
    monkeypatch.syspath_prepend(workplace)
    module = workplace / "my_edited_noise.py"
    module.write_text("rate = 1\n")
    plugins.import_module("my_edited_noise", "preprocessor")
    config = configs.load(RECIPE, ["data.path=a.txt", "data.modules=[my_edited_noise]"])
    preflight.check(config)
    module.write_text("rate = 2\n")
    with pytest.raises(UserError, match="my_edited_noise was edited since it was imported: restart Python"):
        preflight.check(config)
    preflight.check(configs.load(RECIPE, ["data.path=a.txt"]))  # which does not use it
    del sys.modules["my_edited_noise"]


def test_a_sound_recipe_writes_nothing(workplace):
    preflight.check(configs.load(RECIPE, ["run_dir=runs/x", "data.path=a.txt"]))
    assert not Path("runs").exists()


def test_weights_of_another_family_may_fit_in_part(workplace):
    tree = families.tree("gpt2", init_from={"path": "hf", "partial": True}, run_dir="runs/x")
    preflight.check(configs.build(tree))
    tree["init_from"]["partial"] = False
    with pytest.raises(UserError, match="is of family encoder"):
        preflight.check(configs.build(tree))


def test_a_resume_needs_no_origin(workplace):
    config = configs.load(RECIPE, ["run_dir=runs/x", "init_from.path=gone", "data.path=a.txt"])
    with pytest.raises(UserError, match=r"init_from\.path: gone"):
        preflight.check(config)
    assert not Path("runs").exists()
    Path("runs/x/checkpoints/2").mkdir(parents=True)
    preflight.check(config)
    with pytest.raises(UserError, match=r"data\.path: gone\.txt"):  # all else is looked at still
        preflight.check(configs.load(RECIPE, ["run_dir=runs/x", "init_from.path=gone", "data.path=gone.txt"]))
    Path("runs/x").rename("copy")  # the copy of a run_dir that is lost: it is fetched
    copied = ["init_from.path=gone", "data.path=a.txt", "checkpoint.copy_to=copy"]
    preflight.check(configs.load(RECIPE, ["run_dir=runs/x", *copied]))


def test_a_run_with_a_setting_that_does_nothing_resumes(workplace, monkeypatch):
    """Earlier versions let it begin."""
    settings = ["train.patience=2", "train.stall_exit=true", "train.stall_seconds=null", "data.test_path=b.txt"]
    settings += ["evals=[{kind: heldout, name: held}]", "optimizer.layer_decay_offset=2", "checkpoint.every=3"]
    config = configs.load(RECIPE, ["run_dir=runs/x", "data.path=a.txt", *settings])
    Path("runs/x/checkpoints/2").mkdir(parents=True)
    notes = []
    monkeypatch.setattr(errors, "note", notes.append)
    preflight.check(config)
    keys = [line.partition(":")[0] for line in notes]
    Path("runs/x").rename("copy")
    preflight.check(config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"copy_to": "copy"})}))
    assert keys == ["train.patience", "train.stall_exit", "optimizer.layer_decay_offset", "data.test_path"]


def refused_of_a_new_run_alone(config, words, monkeypatch):
    """A run that an earlier version let begin goes on, with a note."""
    with pytest.raises(UserError, match=f"^{words}"):
        preflight.check(config)
    Path("runs/x/checkpoints/2").mkdir(parents=True)
    notes = []
    monkeypatch.setattr(errors, "note", notes.append)
    preflight.check(config)
    assert len(notes) == 1 and re.match(words, notes[0])


@pytest.mark.parametrize(
    ("family", "objective", "key"),
    [
        ("t5", {"kind": "text_to_text", "truncate": "first"}, "objective.truncate"),
        ("bert", {"kind": "classification", "z_loss": 1e-4}, "objective.z_loss"),
        ("bert", {"kind": "distillation", "teacher": "hf", "z_loss": 1e-4}, "objective.z_loss"),
    ],
)
def test_a_recipe_whose_objective_has_an_idle_setting_is_refused(workplace, monkeypatch, family, objective, key):
    task = {} if "teacher" in objective else {"task": {"kind": "classification", "labels": ["good", "bad"]}}
    data = {"path": "a.csv" if task else "a.txt"}
    config = families.config(family, run_dir="runs/x", data=data, objective=objective, **task)
    refused_of_a_new_run_alone(config, f"{key}: ", monkeypatch)


BART = {"kind": "bart", "vocab_size": 200, "layers": 1, "embed_dim": 32, "heads": 4, "mlp_dim": 64, "max_positions": 32}
DEBERTA = families.MODELS["bert"] | {"kind": "deberta", "buckets": 8}
SPANS = {"kind": "salient_spans", "targets_length": 64}
TOO_LONG = (
    r"targets_length: targets of 64 tokens are beyond the position table of model\.kind: bart, which has 32 rows; "
)
SHORT = {"mask_decoder": True, "max_positions": 16}
ONE_TYPE = families.MODELS["bert"] | {"token_types": 1}


@pytest.mark.parametrize(
    ("model", "objective", "words"),
    [
        (BART, SPANS, rf"objective\.{TOO_LONG}lower objective\.targets_length or raise model\.max_positions"),
        (
            BART, {"kind": "distillation", "teacher": "hf", "of": SPANS},
            rf"objective\.of\.{TOO_LONG}lower objective\.of\.targets_length or raise model\.max_positions",
        ),
        (
            DEBERTA, {"kind": "replaced_token", "generator": SHORT, "sharing": "disentangled"},
            r"objective\.generator\.max_positions: 16 is below data\.length, 32; leave it out",
        ),
        (ONE_TYPE, {"kind": "masked_lm"}, r"model\.token_types: 1 is below the 2 of the inputs; set model\.token_ty"),
    ],
)  # fmt: skip
def test_rows_beyond_a_table_are_refused(workplace, monkeypatch, model, objective, words):
    """Positions would be clipped to its last row, types would be zeros, in silence."""
    tree = families.tree("t5" if model is BART else "bert", run_dir="runs/x", data={"path": "a.txt"})
    config = configs.build(tree | {"model": model, "objective": objective})
    refused_of_a_new_run_alone(config, words, monkeypatch)


def test_a_recipe_whose_model_has_an_idle_setting_is_refused(workplace, monkeypatch):
    words = r"model\.rope_original_positions: has no effect with rope_scaling: none; remove it"
    recipe = {"run_dir": "runs/x", "data": {"path": "a.txt"}, "model": {"rope_original_positions": 16}}
    later = {"set": {"model.rope_scaling": "yarn", "model.rope_factor": 2.0}}  # which reads it
    preflight.check(families.config("llama", **recipe, train={"steps": 4, "phases": [{"steps": 2}, later]}))
    refused_of_a_new_run_alone(families.config("llama", **recipe), words, monkeypatch)


def test_an_idle_setting_of_another_s_model_is_noted(workplace, monkeypatch):
    """Of a config.json, which may have more keys than are read."""
    notes = []
    monkeypatch.setattr(errors, "note", notes.append)
    start = {"init_from": {"path": "hf", "partial": True}, "run_dir": "runs/x", "data": {"path": "a.txt"}}
    preflight.check(families.config("llama", model={"other_window": 16}, **start))
    assert notes == ["model.other_window: has no effect without an other layer in pattern; remove it"]


def test_settings_that_have_their_partner_are_taken(workplace):
    settings = ["train.patience=2", "train.stall_exit=true"]
    settings += ["optimizer.layer_decay=0.9", "optimizer.layer_decay_offset=2"]
    preflight.check(configs.load(RECIPE, ["run_dir=runs/x", "data.path=a.txt", *settings]))
