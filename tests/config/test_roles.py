"""What another value of a key means for a run, and for what is kept on disk; phases of a run."""

import pytest
from pydantic import create_model

from jaxpt.config import at_phase, build, cache_key_fields, differences, load, phase_starts
from tests import families

PHASES = "train.phases=[{steps: 900}, {set: {data: {length: 512}, objective.mask_rate: 0.2}}]"


def test_phases(recipe):
    config = load(recipe, [PHASES])
    assert phase_starts(config) == (0, 900)
    first, second = at_phase(config, 0), at_phase(config, 1)
    assert (first.data.length, second.data.length) == (128, 512)
    assert (first.objective.mask_rate, second.objective.mask_rate) == (0.15, 0.2)
    assert first.train.phases == second.train.phases == ()
    assert second.model == config.model and at_phase(second, 1) == second


def test_a_shorter_run_ends_in_an_earlier_phase_and_can_go_on(recipe):
    shorter = load(recipe, [PHASES, "train.steps=900"])
    assert phase_starts(shorter) == (0,)
    assert at_phase(shorter, 0).data.length == 128
    assert differences(shorter, load(recipe, [PHASES])) == []


def test_no_phases_is_one_phase(recipe):
    config = load(recipe)
    assert phase_starts(config) == (0,)
    assert at_phase(config, 0) == config


@pytest.mark.parametrize(
    ("override", "role"),
    [
        ("data.length=64", "identity"), ("seed=1", "identity"), ("model.layers=3", "identity"),
        ("objective.mask_rate=0.3", "identity"), ("optimizer.learning_rate=1.0", "identity"),
        ("model.dtype=float32", "execution"), ("objective.loss_chunk=8", "execution"), ("mesh.fsdp=2", "execution"),
        ("plan.topology=v5e:4x4", "execution"),
        ("train.grad_accum_steps=2", "execution"), ("run_dir=x", "execution"), ("data.readers=2", "execution"),
        ("train.steps=2000", "extensible"), ("data.path=x.txt", "content"), ("data.tokenizer.path=x", "content"),
    ],
)  # fmt: skip
def test_roles(recipe, override, role):
    key = override.partition("=")[0]
    a, b = load(recipe), load(recipe, [override])
    for each in ("identity", "content", "execution", "extensible"):
        assert [k for k, _, _ in differences(a, b, each)] == ([key] if each == role else [])


def test_files_of_a_mixture_are_content_its_tasks_identity(recipe):
    tasks = "data.mixture=[{name: a, path: %s, rate: 1}, {name: b, path: y, rate: %d}]"
    old, moved, other = (load(recipe, [tasks % of]) for of in (("x", 1), ("z", 1), ("x", 2)))
    assert differences(old, moved) == [] and differences(old, other, "content") == []
    assert differences(old, moved, "content") == [("data.mixture.0.a.path", "x", "z")]
    assert [key for key, _, _ in differences(old, other)] == ["data.mixture.1.b.rate"]


def test_another_objective_differs_in_its_kind_and_keys(recipe):
    other = load(recipe, ["objective=null", "objective={kind: causal_lm}"])
    keys = [key for key, _, _ in differences(load(recipe), other)]
    assert "objective.kind" in keys and "objective.mask_rate" in keys


def test_a_run_with_phases_can_be_extended_at_its_end_alone(recipe):
    explicit = "train.phases=[{steps: 900}, {steps: 100, set: {data: {length: 512}, objective.mask_rate: 0.2}}]"
    old, longer = load(recipe, [explicit]), load(recipe, [PHASES, "train.steps=3000"])
    assert differences(old, longer) == []
    assert differences(old, longer, "extensible") == [("train.steps", 1000, 3000)]
    earlier = load(recipe, [PHASES.replace("900", "800")])
    assert [key for key, _, _ in differences(old, earlier)] == ["train.phases"]


def fresh(part, **values):
    """The part with a field more, about which nothing is said."""
    cls = create_model("Fresh", __base__=type(part), fresh=(int, 0))
    return cls.model_construct(**dict(part), **values)


@pytest.mark.parametrize("section", ["", "model", "objective", "optimizer", "train", "mesh"])
def test_a_compiled_step_depends_on_every_field_that_says_nothing(recipe, section):
    config = load(recipe)
    part = getattr(config, section) if section else config
    one, other = (
        config.model_copy(update={section: fresh(part, fresh=n)}) if section else fresh(config, fresh=n) for n in (1, 2)
    )
    a, b = cache_key_fields(one, "program"), cache_key_fields(other, "program")
    assert {key for key in a | b if a.get(key) != b.get(key)} == {f"{section}.fresh".removeprefix(".")}


def test_prepared_records_depend_on_every_field_of_the_data_that_says_nothing(recipe):
    data = load(recipe).data
    assert cache_key_fields(fresh(data, fresh=1), "records")["fresh"] == 1


@pytest.mark.parametrize(
    ("override", "records", "program"),
    [
        ("data.field=body", True, False), ("data.passes=2", True, False), ("data.readers=3", False, False),
        ("data.path=elsewhere.txt", False, False), ("data.batch_size=8", False, False),
        ("model.remat=full", False, True), ("train.grad_accum_steps=2", False, True), ("seed=3", False, True),
        ("train.log_every=3", False, False), ("run_dir=x", False, False), ("checkpoint.every=3", False, False),
    ],
)  # fmt: skip
def test_what_is_kept_on_disk_depends_on(recipe, override, records, program):
    a, b = load(recipe), load(recipe, [override])
    assert (cache_key_fields(a.data, "records") != cache_key_fields(b.data, "records")) == records
    assert (cache_key_fields(a, "program") != cache_key_fields(b, "program")) == program


def test_an_empty_mapping_that_is_filled_differs_by_its_keys():
    task = {"kind": "classification", "labels": ["a", "b"], "metrics": ["f1"]}
    sections = {"objective": {"kind": "classification"}, "evals": [{"kind": "heldout"}]}
    old, new = (
        build(families.tree("bert", task=task | {"metric_options": options}, **sections))
        for options in ({}, {"rouge": {"stemmer": False}})
    )
    assert differences(old, new) == [("task.metric_options.rouge.stemmer", None, False)]
    assert differences(new, old) == [("task.metric_options.rouge.stemmer", False, None)]
