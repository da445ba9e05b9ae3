"""A run with a teacher: found, sharded, never changed, known again; and a student that starts from its layers."""

import json
import shutil

import jax
import numpy as np
import pytest
import yaml
from flax import traverse_util

from jaxpt import cli, errors, hf
from jaxpt import config as configs
from jaxpt.config import InitConfig, TokenizerConfig
from jaxpt.data import datasets, tokenizers
from jaxpt.errors import UserError
from jaxpt.train import flops, initial, run_dir, state, step, teachers, weights
from tests import families
from tests.models.helpers import drawn, whole
from tests.runs import assert_bit_equal, final

TASK = {"kind": "masked_lm", "next_sentence": False}
WORDS = "says that the cat sat on the mat and the dog ran to the house"
TEXT = "\n".join(f"document number {i} {WORDS}" for i in range(60))


def student(teacher, mesh=None, **sections):
    sections = {"model": {"kind": "distilbert", "layers": 1}, "mesh": mesh or {"data": 1}, **sections}
    tree = families.tree("bert", **sections)
    return tree | {"objective": {"kind": "distillation", "teacher": str(teacher), "of": TASK}}


def write_run(path, config, params):
    """A run_dir with weights alone, as an import leaves it."""
    run_dir.make(path)
    run_dir.save_config(config.model_copy(update={"run_dir": str(path)}))
    flat = traverse_util.flatten_dict(jax.device_get(params), sep="/")
    dtypes, pieces = {p: x.dtype for p, x in flat.items()}, ((p, None, x) for p, x in flat.items())
    weights.write(path, families.network(config), dtypes, pieces)
    return flat


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """(Hugging Face directory, parameters) of a teacher of four layers."""
    path = tmp_path_factory.mktemp("hf") / "teacher"
    network = families.network(families.config("bert", model={"layers": 4}))
    params = drawn(network)
    hf.save(path, network, params)
    return path, params


# ---- in the step ----------------------------------------------------------------------------------------------------


def one_step(path, mesh, devices):
    config = configs.build(student(path, mesh))
    setup = teachers.attach(state.setup(config, jax.devices()[:devices]), lambda line: None)
    with setup.use():
        batch, update = step.put(families.batch(config), setup), step.make_train_step(setup, config.objective)
        _, metrics = update(families.begin(setup), batch, *setup.teacher_params())
    return setup, jax.device_get(metrics)


@pytest.mark.slow
def test_a_teacher_is_sharded_and_stays_as_it_is(teacher):
    path, params = teacher
    _, alone = one_step(path, {"data": 1}, 1)
    setup, together = one_step(path, {"data": 2, "fsdp": 2, "tensor": 2}, 8)
    assert alone["kl"] > 0 and alone["cosine"] > 0
    with setup.use():
        batch, models = step.batch_shapes(setup, setup.config.objective), setup.loss_options()["teachers"]
        thrice = flops.model_flops(setup.network, setup.config.objective, setup.shapes.params, batch, models)
        once = flops.step_flops(setup, batch)
    # Four layers of the teacher without a backward pass, one of the student with one, and a head of each.
    assert (4 + 3) / 15 < once / thrice < 4 / 6
    for name in alone:
        np.testing.assert_allclose(together[name], alone[name], rtol=1e-4, atol=1e-6, err_msg=name)
    expected = traverse_util.flatten_dict(params, sep="/")
    rows = traverse_util.flatten_dict(setup.teachers["teacher"].params, sep="/")
    assert set(rows) == set(expected)
    for name, leaf in rows.items():
        if leaf.size >= 32 * 64:
            assert leaf.addressable_shards[0].data.size * 4 == leaf.size, f"{name} is not split four ways"
        kept = expected[name][:200] if name.endswith(("token_embed/table", "masked_lm/bias")) else expected[name]
        np.testing.assert_array_equal(np.asarray(leaf)[: len(kept)], kept, err_msg=name)


def test_a_teacher_with_fewer_token_types_is_refused_of_a_new_run_alone(teacher, tmp_path, monkeypatch):
    tree = student(teacher[0], run_dir=str(tmp_path))
    config = configs.build(tree | {"objective": tree["objective"] | {"of": {"kind": "unilm"}}})
    setup, notes = state.setup(config, jax.devices()[:1]), []
    with pytest.raises(UserError, match="has 2 token types, but the inputs of objective"):
        teachers.attach(setup, print, shapes_alone=True)
    (tmp_path / "checkpoints" / "2").mkdir(parents=True)
    monkeypatch.setattr(errors, "note", notes.append)
    assert teachers.attach(setup, lambda line: None, shapes_alone=True).teachers
    assert len(notes) == 1 and "have 6" in notes[0]


# ---- the vocabulary of weights that are taken ------------------------------------------------------------------------


def test_a_start_under_another_vocabulary_is_told(tmp_path):
    settings, lines = TokenizerConfig(kind="bpe"), TEXT.splitlines()
    mine = tokenizers.train(lines, settings, 270, tmp_path / "mine")
    theirs = tokenizers.train([line[::-1] for line in lines], settings, 270, tmp_path / "run" / "tokenizer")

    def said(tokenizer, name="run", **options):
        config = families.config("gpt2", init_from={"path": str(tmp_path / name), **options})
        return teachers.other_vocabulary(config, tokenizer)

    line = said(mine)
    assert line.startswith("warning: data.tokenizer is not the vocabulary of init_from.path: ") and ": id 25" in line
    assert line.endswith(f"; data.tokenizer.path={tmp_path / 'run' / 'tokenizer'} takes that one")
    assert said(theirs) is None and said(mine, vocabulary="new") is None and said(mine, random=True) is None
    (tmp_path / "t5x").mkdir()
    assert said(mine, "t5x") is None, "it has none"


# ---- where a student starts -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_student_starts_from_the_layers_that_are_named(teacher, tmp_path):
    path, params = teacher
    flat = write_run(tmp_path / "run", families.config("bert", model={"layers": 4}), params)
    setup = state.setup(configs.build(student(path, model={"kind": "distilbert", "layers": 2})), jax.devices()[:1])
    for where in (path, tmp_path / "run"):
        said = []
        made = initial.start(setup, InitConfig(path=str(where), layers=(3, 1), partial=True), said.append)
        got = traverse_util.flatten_dict(made.params, sep="/")
        for name in got:
            wanted = flat[name][[3, 1]] if "/segment_0/" in name else flat[name]
            wanted = wanted[:200] if name.endswith(("token_embed/table", "masked_lm/bias")) else wanted
            np.testing.assert_array_equal(got[name][: len(wanted)], wanted, err_msg=name)
        assert "  layers: 0 ← 3, 1 ← 1" in said and "  not used: " in "\n".join(said)
        with pytest.raises(UserError, match="has the layers 0 to 3, no layer 4"):
            initial.start(setup, InitConfig(path=str(where), layers=(0, 4), partial=True), said.append)
        with pytest.raises(UserError, match="lacks or has in another shape model/encoder/segment_0"):
            initial.start(setup, InitConfig(path=str(where), layers=(0, 1, 2)), said.append)


@pytest.mark.slow
def test_layers_that_are_not_alike_cannot_be_chosen(tmp_path):
    for kind, sizes, match in (
        ("albert", {"embedding_dim": 16, "layers": 4}, "share their parameters"),
        ("modernbert", {"layers": 7}, "of several kinds"),
    ):
        model = families.config("bert", model={"kind": kind, **sizes}).model
        hf.save(tmp_path / kind, whole(model), drawn(whole(model)))
        setup = state.setup(configs.build(student(tmp_path / kind)), jax.devices()[:1])
        with pytest.raises(UserError, match=match):
            initial.start(setup, InitConfig(path=str(tmp_path / kind), layers=(0,), partial=True), print)


# ---- a whole run ----------------------------------------------------------------------------------------------------


def run(folder, name, *overrides):
    return cli.main(["train", str(folder / "student.yaml"), f"run_dir={folder / name}", *overrides])


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A teacher's run_dir with its vocabulary, the recipe of its student, and the student's run of three steps."""
    folder = tmp_path_factory.mktemp("distilled")
    (folder / "text.txt").write_text(TEXT)
    sections = {
        "data": {"path": str(folder / "text.txt"), "cache_dir": str(folder / "cache"), "length": 16,
                 "tokenizer": {"kind": "wordpiece"}},
        "train": {"steps": 3, "eval_every": 3, "log_every": 1},
        "checkpoint": {"every": 2},
        "mesh": {"data": 8},
    }  # fmt: skip
    teacher = families.config("bert", objective=TASK, run_dir=str(folder / "teacher"), **sections)
    write_run(folder / "teacher", teacher, drawn(families.network(teacher)))
    datasets.prepare(teacher)
    (folder / "student.yaml").write_text(yaml.safe_dump(student(folder / "teacher", **sections)))
    assert run(folder, "whole") == 0
    return folder


@pytest.mark.slow
def test_a_resumed_student_equals_one_that_ran_through(workplace, capsys):
    shutil.copytree(workplace / "whole", workplace / "short")
    shutil.rmtree(workplace / "short" / "checkpoints" / "3")
    # Nothing of the teacher is in the run, and it may move.
    moved = workplace / "moved"
    shutil.copytree(workplace / "teacher", moved)
    assert run(workplace, "short", f"objective.teacher={moved}") == 0
    assert "resuming from step 2" in capsys.readouterr().out
    assert_bit_equal(*(final(workplace / name, 3) for name in ("whole", "short")))
    saved = weights.Saved(workplace / "whole", 3)
    own = {"token_embed", "position_embed", "embed_norm", "encoder", "masked_lm"}
    assert {p.split("/")[1] for p in saved} == own
    receipt = json.loads((workplace / "short" / "run.json").read_text())
    assert receipt["teachers"]["teacher"]["path"] == str(moved) and receipt["teachers"]["teacher"]["step"] == 0
    assert receipt["validation"].keys() >= {"kl", "cosine", "masked_lm", "agreement", "accuracy", "target_loss"}


@pytest.mark.slow
def test_another_teacher_is_refused_and_evaluation_does_without_one(workplace, capsys):
    other = workplace / "other"
    shutil.copytree(workplace / "teacher", other)
    config = configs.load(other)
    shutil.rmtree(other / "checkpoints")
    write_run(other, config, jax.tree.map(lambda x: -x, drawn(families.network(config))))
    assert run(workplace, "whole", "train.steps=4", f"objective.teacher={other}") == 2
    assert f"was trained with another teacher: {workplace / 'teacher'} at step 0" in capsys.readouterr().err

    assert cli.main(["eval", str(workplace / "whole")]) == 0
    with_teacher = capsys.readouterr().out
    assert cli.main(["eval", str(workplace / "whole"), "objective.teacher=nowhere"]) == 0
    without = capsys.readouterr().out
    assert "kl  " in with_teacher and "kl  " not in without and "evaluating what needs no teacher" in without
    (accuracy,) = [line for line in with_teacher.splitlines() if line.startswith("  accuracy")]
    assert accuracy in without


@pytest.mark.slow
def test_a_missing_teacher_or_another_vocabulary_is_one_line(workplace, capsys):
    assert run(workplace, "none", "objective.teacher=runs/bert_tiny") == 2
    error = capsys.readouterr().err
    assert "objective.teacher: runs/bert_tiny: there is no run_dir" in error
    assert "`jaxpt train configs/smoke/bert_tiny.yaml` makes one" in error and not (workplace / "none").exists()

    (workplace / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgH"]))
    assert run(workplace, "words", f"data.tokenizer.path={workplace / 'vocab.txt'}") == 2
    error = capsys.readouterr().err
    assert "is not the vocabulary of" in error and "size 13 here" in error
