"""No value of a layer is lost without a word: a base's of another kind, those that phases set again, whole phases."""

import re

import pytest

from jaxpt.config import at_phase, dump, load, phase_lines, to_yaml
from tests.config.helpers import RECIPE, ROOT, mistake, write

PHASES = "train: {steps: 100, phases: [{steps: 90, set: {data.length: 16}}, {set: {data.length: 64}}]}\n"


@pytest.fixture
def phased(tmp_path):
    return write(tmp_path / "phased.yaml", RECIPE + PHASES)


def notes(path, *overrides):
    """The configuration, and what was said of it."""
    said = []
    return load(path, overrides, report=said.append), said


# ---- kinds ----------------------------------------------------------------------------------------------------------


def test_what_all_kinds_share_is_kept(tmp_path):
    base = RECIPE.replace("{kind: masked_lm}", "{kind: masked_lm, z_loss: 0.5, loss_chunk: 8, mask_rate: 0.3}")
    write(tmp_path / "base.yaml", base.replace("vocab_size: 100", "vocab_size: 100, remat: full, unroll: 2"))
    top = "base: base.yaml\nmodel: {kind: gpt2, layers: 3, embed_dim: 8, heads: 1}\nobjective: {kind: causal_lm}"
    config, said = notes(write(tmp_path / "r.yaml", top))
    assert (config.model.vocab_size, config.model.remat, config.model.unroll, config.model.layers) == (
        100,
        "full",
        2,
        3,
    )
    assert (config.objective.z_loss, config.objective.loss_chunk) == (0.5, 8)
    path = tmp_path / "r.yaml"
    assert said == [
        f"{path}: model.kind: gpt2 drops bert's mlp_dim: 32",
        f"{path}: objective.kind: causal_lm drops masked_lm's mask_rate: 0.3",
    ]
    config, said = notes(tmp_path / "base.yaml", "objective={kind: translation_lm, z_loss: 0.25}")
    assert (config.objective.z_loss, config.objective.loss_chunk) == (0.25, 8)
    assert said == ["command line: objective.kind: translation_lm drops masked_lm's mask_rate: 0.3"]


def test_nothing_is_said_of_what_comes_back(tmp_path):
    """By a default, or by a higher layer."""
    write(tmp_path / "base.yaml", RECIPE + "optimizer: {kind: adamw, b1: 0.8, learning_rate: 1e-3}")
    path = write(tmp_path / "r.yaml", "base: base.yaml\noptimizer: {kind: lion}")
    assert notes(path)[1] == [f"{path}: optimizer.kind: lion drops adamw's b1: 0.8"]
    assert notes(path, "optimizer.b1=0.8")[1] == []
    assert notes(path, "optimizer.b1=0.7")[1] == [f"{path}: optimizer.kind: lion drops adamw's b1: 0.8"]


OPTIMIZER = "optimizer: {kind: adamw, b1: 0.9, b2: 0.98, eps: 1e-6, learning_rate: 4e-4, weight_decay: 0.01}\n"


def test_another_optimizer_of_the_command_line_has_its_own_defaults(tmp_path):
    """b1, b2 and eps have other meanings there; what all optimizers share is the run's."""
    path = write(tmp_path / "r.yaml", RECIPE + OPTIMIZER)
    config, said = notes(path, "optimizer.kind=adafactor")
    optimizer = config.optimizer
    assert (optimizer.b1, optimizer.b2, optimizer.eps) == (None, 0.8, 1e-30)
    assert (optimizer.learning_rate, optimizer.weight_decay) == (4e-4, 0.01)
    assert said == ["command line: optimizer.kind: adafactor drops adamw's b1: 0.9, b2: 0.98, eps: 1e-06"]
    for words in (["optimizer.b2=0.7", "optimizer.kind=adafactor"], ["optimizer.kind=adafactor", "optimizer.b2=0.7"]):
        optimizer = load(path, words).optimizer
        assert (optimizer.b1, optimizer.b2) == (None, 0.7), "one command line is one layer"
    study = ["optimizer={kind: adamw, b1: 0.8, b2: 0.9}", "optimizer.kind=muon"]  # of all rows, and of one
    assert (load(path, study).optimizer.b1, load(path, study).optimizer.b2) == (0.95, 0.999)
    unnamed = write(tmp_path / "u.yaml", RECIPE + OPTIMIZER.replace("kind: adamw, ", ""))
    assert notes(unnamed, "optimizer.kind=sgd")[0].optimizer.b1 == 0.0
    assert notes(path, "optimizer.kind=adamw") == notes(path)
    sparse = write(tmp_path / "s.yaml", RECIPE + "optimizer: {kind: sparse_sgd, updates: 4}")
    assert notes(sparse, "optimizer.kind=sparse_adagrad")[0].optimizer.updates == 4, "both have it from one class"


def test_a_run_whose_optimizer_kept_keys_of_another_goes_on(tmp_path):
    """Earlier versions kept them, and the same command resumes the run."""
    path = write(tmp_path / "r.yaml", RECIPE + OPTIMIZER + f"run_dir: {tmp_path / 'run'}\n")
    explicit = ["optimizer.kind=adafactor", "optimizer.b1=0.9", "optimizer.b2=0.98", "optimizer.eps=1e-6"]
    write(tmp_path / "run" / "config.yaml", to_yaml(load(path, explicit)))
    config, said = notes(path, "optimizer.kind=adafactor")
    assert config == load(path, explicit) == load(tmp_path / "run", ["optimizer.kind=adafactor"]) and not said
    assert load(path, ["optimizer.kind=adafactor", "optimizer.b1=null"]).optimizer.b1 is None
    assert load(path, ["optimizer.kind=muon"]).optimizer.b1 == 0.95


def test_one_kind_by_two_names(tmp_path):
    write(tmp_path / "base.yaml", RECIPE.replace("{kind: masked_lm}", "{kind: masked_lm, mask_rate: 0.3}"))
    path = write(tmp_path / "r.yaml", "base: base.yaml\nobjective: {kind: jaxpt.objectives.masked_lm}")
    config, said = notes(path)
    assert config.objective.mask_rate == 0.3 and not said


def test_ul2_keeps_the_z_loss_of_t5():
    assert load(ROOT / "configs" / "pretrain" / "ul2_base.yaml").objective.z_loss == 1e-4


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "pretrain").glob("*.yaml")), ids=lambda path: path.stem)
def test_no_recipe_for_pretraining_loses_anything(path):
    assert notes(path)[1] == []


# ---- phases ---------------------------------------------------------------------------------------------------------


def test_an_override_that_phases_would_undo_is_refused(phased):
    assert mistake(phased, "data.length=48") == (
        f"command line: data.length: 48 has no effect in phase 1 (16) and phase 2 (64), "
        f"set by train.phases of {phased}; "
        "write train.phases.0.set.data.length=48 train.phases.1.set.data.length=48, "
        "or 'train.phases=[]' for a run without phases"
    )
    assert "data.length: 48 has no effect" in mistake(phased, "data={length: 48}", "data.batch_size=8")
    assert "in phase 2 (64), " in mistake(phased, "data.length=48", "train.phases.0.set.data.length=48")
    assert "in phase 2 (64), " in mistake(phased, "data.length=16", "train.steps=50")


@pytest.mark.parametrize(
    ("overrides", "lengths"),
    [
        (["data.batch_size=8"], [16, 64]),
        (["data.length=48", "train.phases=[]"], [48]),
        (["train.phases=[]", "data.length=48"], [48]),
        (["train.phases.0.set.data.length=48"], [48, 64]),
        (["train.phases.0.set={data.length: 48}"], [48, 64]),
        (["data.length=48", "train.phases=[{steps: 10}, {set: {data.length: 64}}]"], [48, 64]),
        (["train.phases.0.set.data.length=48", "train.phases.1.set.data.length=48", "data.length=48"], [48, 48]),
    ],
)
def test_overrides_that_are_clear_win(tmp_path, phased, overrides, lengths):
    config = load(phased, overrides)
    assert [at_phase(config, n).data.length for n in range(len(lengths))] == lengths
    assert load(write(tmp_path / "config.yaml", to_yaml(config))) == config


def test_a_file_over_a_base_with_phases(tmp_path, phased):
    path = write(tmp_path / "r.yaml", "base: phased.yaml\ndata: {length: 48}")
    assert mistake(path) == (
        f"{path}: data.length: 48 has no effect in phase 1 (16) and phase 2 (64), set by train.phases of {phased}; "
        "set train.phases there too, [] for a run without phases"
    )
    assert load(path, ["train.phases=[]"]).data.length == 48
    path = write(
        tmp_path / "s.yaml", "base: phased.yaml\ndata: {length: 48}\ntrain: {phases: [{set: {data.length: 8}}]}"
    )
    assert at_phase(load(path), 0).data.length == 8
    write(tmp_path / "length.yaml", "data: {length: 48}")
    assert "length.yaml: data.length: 48 has" in mistake(write(tmp_path / "t.yaml", "base: [phased.yaml, length.yaml]"))
    path = write(tmp_path / "u.yaml", "base: [length.yaml, phased.yaml]")
    assert at_phase(load(path), 0).data.length == 16


def test_a_run_directory_goes_on_and_is_still_guarded(tmp_path, phased):
    config = load(phased, ["data.batch_size=8", "run_dir=somewhere"])
    write(tmp_path / "run" / "config.yaml", to_yaml(config))
    assert dump(load(tmp_path / "run", ["train.steps=200"]))["train"]["steps"] == 200
    assert "config.yaml; write train.phases.0.set" in mistake(tmp_path / "run", "data.length=48")


def test_a_phase_that_is_set_twice(phased):
    answer = mistake(phased, "train.phases.0.set={data: {length: 48}}")
    assert re.search(r"train\.phases\.0\.set: data\.length is given twice", answer)


def test_phases_that_a_run_does_not_reach_are_named(phased):
    config, said = notes(phased, "train.steps=90")
    assert said == [
        "command line: train.steps: the run ends at step 90, in phase 1 of 2; dropped: phase 2 (data.length: 64), "
        "which would start after step 90"
    ]
    assert phase_lines(config) == ["phase 1 of 2: steps 1–90, batches of 32 × 16 tokens"]
    assert notes(phased, "train.steps=91")[1] == []


def test_phases_are_listed(phased):
    assert phase_lines(load(phased, ["train.phases.1.set.objective.mask_rate=0.2"])) == [
        "phase 1 of 2: steps 1–90, batches of 32 × 16 tokens",
        "phase 2 of 2: steps 91–100, batches of 32 × 64 tokens; objective.mask_rate: 0.2",
    ]
    assert phase_lines(load(phased, ["train.phases=[]"])) == ["phase 1 of 1: steps 1–100, batches of 32 × 128 tokens"]


# ---- mistakes that come of another kind ------------------------------------------------------------------------------


def test_a_model_of_another_kind_says_what_was_dropped(tmp_path):
    write(tmp_path / "base.yaml", RECIPE)
    path = write(tmp_path / "r.yaml", "base: base.yaml\nmodel: {kind: gpt2}")
    assert mistake(path) == (
        f"{path}: key model.layers is missing; {path} sets model.kind: gpt2, so bert's own layers, embed_dim, heads, "
        "mlp_dim below it are dropped; write the keys of gpt2 beside its kind, or name one of configs/models in base:"
    )
    path = write(tmp_path / "s.yaml", "model: {kind: gpt2, vocab_size: 8}\n")
    assert mistake(path).endswith("key model.layers is missing")


def test_a_kind_alone_says_how_to_drop_the_keys_of_the_other(tmp_path):
    path = write(tmp_path / "r.yaml", RECIPE.replace("{kind: masked_lm}", "{kind: masked_lm, mask_rate: 0.3}"))
    message = mistake(path, "objective.kind=causal_lm")
    assert message.startswith(f"{path}: unknown key objective.mask_rate of kind causal_lm, only of ")
    assert message.endswith(
        "; command line sets objective.kind: objective='{kind: causal_lm}' there drops keys of other kinds"
    )
    load(path, ["objective={kind: causal_lm}"])
