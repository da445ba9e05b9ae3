"""Batches from files beside those of the stream that they were written from."""

import functools
import itertools
import json
import re
import shutil

import numpy as np
import pytest

from jaxpt import config as configs
from jaxpt.data import datasets, preparing
from jaxpt.data.batches import manifest, read
from jaxpt.data.batches.write import write_batches
from jaxpt.data.labelled.examples import split_rows
from jaxpt.data.parts import each_task
from jaxpt.errors import UserError
from jaxpt.evals import baseline
from jaxpt.report.verify import verify
from jaxpt.study.recipes import with_task_values
from tests import families, fine_tuning

LINES = [
    f"Sentence {i} speaks of {w}. It goes on, and ends." for i in range(30) for w in ("cats", "dogs", "mice", "birds")
]
STEPS = 7
SET = {"data.length": 16, "data.batch_size": 12}


def texts(family, folder, **sections):
    (folder / "a.txt").write_text("\n".join(LINES[::2]))
    (folder / "b.txt").write_text("\n".join(LINES[1::2]))
    data = {"path": str(folder / "a.txt"), "validation_fraction": 0.15, "length": 24, "batch_size": 8}
    data |= {"cache_dir": str(folder / "cache"), **sections.pop("data", {})}
    size = {"t5": 200, "bert": 120, "gpt2": 300}[family]
    model = {"vocab_size": size, **sections.pop("model", {})}
    train = {"steps": STEPS, **sections.pop("train", {})}
    return families.config(family, model=model, data=data, train=train, run_dir=str(folder / "run"), **sections)


def mixed(folder):
    tasks = [{"name": name, "path": str(folder / f"{name}.txt"), "rate": rate} for name, rate in (("a", 3), ("b", 1))]
    return texts("t5", folder, data={"path": None, "mixture": tasks, "validation_fraction": 0.02})


def continuing(folder):
    model = {"kind": "xlnet", "layers": 2, "embed_dim": 32, "heads": 4, "mlp_dim": 64, "memory_length": 8,
             "reuse_length": 12, "vocab_size": 120, "max_positions": None}  # fmt: skip
    model.pop("max_positions")
    tree = families.tree("bert", data={
        "path": str(folder / "a.txt"), "validation_fraction": 0.3, "length": 24, "batch_size": 4,
        "cache_dir": str(folder / "cache"),
    }, train={"steps": STEPS}, run_dir=str(folder / "run"))  # fmt: skip
    (folder / "a.txt").write_text("\n".join(LINES))
    return configs.build({**tree, "model": {**model, "dtype": "float32"}, "objective": {"kind": "permutation_lm"}})


CASES = {
    "phases": lambda folder: texts(
        "gpt2", folder, evals=families.EVALUATED,
        train={"phases": [{"steps": 3, "set": SET}, {}], "eval_examples": 20},
    ),
    "packed": lambda folder: texts(
        "bert", folder, evals=families.EVALUATED, data={"packing": True}, objective={"next_sentence": False}
    ),
    "mixture": mixed,
    "continuing": continuing,
    "labelled": lambda folder: fine_tuning.recipe(folder, train={"steps": STEPS}),
    "tasks": lambda folder: fine_tuning.mixture(folder, train={"steps": STEPS}),
}  # fmt: skip


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """Name → (recipe, directory of its batches)."""

    @functools.cache
    def made(name):
        folder = tmp_path_factory.mktemp(name)
        config = CASES[name](folder)
        write_batches(config, STEPS, folder / "batches", baseline.baseline, report=lambda line: None)
        return config, folder / "batches"

    return made


def from_files(config, directory, **changes):
    """The recipe on its batches, with other values of the keys of `changes`."""
    tree = configs.dump(config)
    for key, value in {"data.source": "batches", "data.path": str(directory), **changes}.items():
        *above, last = key.split(".")
        functools.reduce(dict.__getitem__, above, tree)[last] = value
    return configs.build(tree)


def assert_equal(one, two, count=None):
    found = [list(itertools.islice(batches, count)) for batches in (one, two)]
    assert len(found[0]) == len(found[1]) > 0
    for a, b in zip(*found):
        assert a.keys() == b.keys()
        for name in a:
            assert a[name].dtype == b[name].dtype and a[name].shape == b[name].shape
            assert a[name].tobytes() == b[name].tobytes(), name


SLOW = ("mixture", "tasks")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in CASES])
def test_what_is_read_is_what_the_stream_gives(case, name):
    config, directory = case(name)
    again = from_files(config, directory)
    manifest.check(again)
    for phase, steps in enumerate((3, 4) if name == "phases" else (STEPS,)):
        of_phase = configs.at_phase(config, phase)
        stream = datasets.prepare(of_phase, phase, report=lambda line: None, save=False)
        read = preparing.prepare(configs.at_phase(again, phase), phase, save=False)
        for start, rows in ((0, None), (2, np.array([1, 2])), (steps - 1, slice(0, 3))):
            assert_equal(stream.train.batches(start, rows), read.train.batches(start, rows), steps - start)
        assert len(list(read.train.batches(1))) == steps - 1
        size, limit = of_phase.data.batch_size, of_phase.train.eval_examples
        assert len(read.validation) == len(stream.validation)
        assert_equal(stream.validation.epoch(3, limit=3), read.validation.epoch(3, limit=3))
        for one, theirs in stream.validation.each().items():
            ours = read.validation.each()[one]
            assert_equal(theirs.epoch(size, limit), ours.epoch(size, limit))
            rows = np.arange(size)[1::2]
            assert_equal(theirs.epoch(size, limit, rows), ours.epoch(size, limit, rows))
        assert json.loads(json.dumps(stream.fingerprint)) == read.fingerprint
        assert read.tokenizer.digest() == stream.tokenizer.digest() and read.vocabulary == stream.vocabulary
        assert (read.summary, read.text_per_row, read.code) == (stream.summary, stream.text_per_row, stream.code)
        if name in ("phases", "packed"):  # of bigrams, of unigrams
            assert baseline.baseline(of_phase, read) == baseline.baseline(of_phase, stream) > 0


def test_so_many_threads_read_as_the_recipe_says(case, monkeypatch):
    threads = []
    monkeypatch.setattr(read, "ahead", lambda make, numbers, count: threads.append(count))
    config = configs.at_phase(from_files(*case("phases"), **{"data.readers": 3}), 0)
    data = preparing.prepare(config, save=False)
    data.train.batches()
    for validation in (data.validation, *data.validation.each().values()):
        validation.epoch(3)
    assert threads == [3, 3, 3]


@pytest.mark.parametrize("name", ["labelled", pytest.param("tasks", marks=pytest.mark.slow)])
def test_rows_and_labels_lie_beside_them(case, name, tmp_path):
    config, directory = case(name)
    moved = shutil.copytree(directory, tmp_path / "moved")
    again = with_task_values(from_files(config, moved, run_dir=str(tmp_path / "run")))
    assert again.task == config.task and again.objective == config.objective
    for one, of_task in each_task(config).items():
        for split in ("train", "validation"):
            rows = split_rows(of_task, split)
            assert [row.row.values for row in split_rows(each_task(again)[one], split)] == [x.row.values for x in rows]


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"data.batch_size": 16}, "data.batch_size was 12, is 16"),
        ({"data.length": 20}, "data.length was 24, is 20"),
        ({"seed": 1}, "seed was 0, is 1"),
        ({"data.packing": True}, "data.packing was false, is true"),
        ({"train.eval_examples": 30}, "train.eval_examples was 20, is 30"),
        ({"train.eval_examples": None}, "train.eval_examples was 20, is null"),
        ({"train.phases": []}, "the first step of each phase was [0, 3], is [0]"),
        ({"train.phases": [{"steps": 2, "set": SET}, {}]}, "the first step of each phase was [0, 3], is [0, 2]"),
        ({"data.tokenizer": {"kind": "bpe", "vocab_size": 280}}, "data.tokenizer.vocab_size was null, is 280"),
    ],
)
def test_other_settings_are_one_line(case, changes, wanted):
    config, directory = case("phases")
    if "data.batch_size" in changes:
        changes = {"train.phases": [{"steps": 3, "set": {"data.length": 16, "data.batch_size": 16}}, {}]}
    with pytest.raises(UserError) as error:
        manifest.check(from_files(config, directory, **changes))
    assert str(error.value) == (
        f"{directory}: its batches were prepared with other settings: {wanted}; set it back, or prepare the batches "
        "again"
    )


def test_a_mixture_that_is_left_out_is_named(tmp_path):
    saved = mixed(tmp_path)
    config = families.config("t5", data={"source": "batches", "path": str(tmp_path), "validation_fraction": 0.02})
    wanted = r"with other settings: data\.mixture was \['a', 'b'\], is \[\]; set it back"
    with pytest.raises(UserError, match=wanted):
        manifest.check_phase(tmp_path, saved, config)


def test_other_objectives_and_vocabularies_are_one_line(case, tmp_path):
    config, directory = case("packed")
    other = from_files(config, directory, **{"objective.mask_rate": 0.3})
    with pytest.raises(UserError, match=r"with other settings: \S* masked_lm.mask.rate was 0.15, is 0.3"):
        preparing.prepare(other, save=False)
    plain = case("phases")[1] / manifest.TOKENIZER
    shutil.copytree(plain, tmp_path / "run" / "tokenizer")
    wanted = re.escape(f"{tmp_path / 'run' / 'tokenizer'}")
    settings = from_files(*case("phases"), run_dir=str(tmp_path / "run"))
    preparing.prepare(configs.at_phase(settings, 0), save=False)  # the run's own is the same
    with pytest.raises(UserError, match=wanted):
        preparing.prepare(from_files(case("packed")[0], directory, run_dir=str(tmp_path / "run")), save=False)


def test_more_steps_than_prepared_are_one_line(case):
    config, directory = case("labelled")
    with pytest.raises(UserError) as error:
        manifest.check(from_files(config, directory, **{"train.steps": STEPS + 1}))
    assert str(error.value) == (
        f"{directory}: holds the batches of 7 steps, the run has 8 (train.steps); prepare more with "
        "`jaxpt cache RECIPE --batches 8 --out DIR`, or set train.steps=7"
    )
    manifest.check(from_files(config, directory, **{"train.steps": STEPS - 1}))
    config, directory = case("phases")
    short = {"train.steps": 2, "train.phases": [{"set": SET}]}  # what is left of the phases of such a run
    manifest.check(from_files(config, directory, **short))


def test_what_is_no_directory_of_batches_is_one_line(case, tmp_path):
    config, directory = case("labelled")
    with pytest.raises(UserError, match=r"holds no batches\.json; `jaxpt cache RECIPE --batches"):
        manifest.check(from_files(config, tmp_path))
    with pytest.raises(UserError, match=r"data\.path: data\.source: batches wants the directory .*, got null"):
        manifest.check(from_files(config, directory, **{"data.path": None}))
    (tmp_path / "batches.json").write_text((directory / "batches.json").read_text().replace('"steps": 7', '"steps": 9'))
    with pytest.raises(UserError, match=r"batches\.json: is damaged; copy it again, or prepare the batches again"):
        manifest.check(from_files(config, tmp_path))
    with pytest.raises(UserError, match="records are made of the data itself"):
        datasets.prepare(from_files(*case("packed")), save=False)


def test_a_directory_is_written_once_and_whole(case, tmp_path, monkeypatch):
    config, directory = case("packed")
    with pytest.raises(UserError, match=re.escape(f"--out: {directory}: is there already")):
        write_batches(config, 2, directory, baseline.baseline)
    monkeypatch.setattr(manifest, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_batches(config, 2, tmp_path / "out", baseline.baseline, report=lambda line: None)
    assert not list(tmp_path.iterdir())


def test_verify_reads_every_member(case, tmp_path):
    _, directory = case("phases")
    said = []
    assert verify(str(directory), said.append) == 0
    assert said[:4] == [
        "tokenizer: whole", "phase-1/train, 36 rows: whole", "phase-1/validation-data, 8 rows: whole",
        "phase-2/train, 32 rows: whole",
    ]  # fmt: skip
    moved = shutil.copytree(directory, tmp_path / "moved")
    file = moved / "phase-2" / "train-00000.npz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    said.clear()
    assert verify(str(moved), said.append) == 2
    (fault,) = (line for line in said if "damaged (" in line)
    assert fault.startswith(f"phase-2/train, 32 rows: {file}: is damaged (")
    assert said[-1] == f"{moved}: 1 not whole: phase-2/train, 32 rows"
