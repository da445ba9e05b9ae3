"""Tasks that others registered train unchanged: the examples are SeqIO's own, the stream seeks, its tier is told."""

import functools
import itertools
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxpt import config as configs
from jaxpt.data import datasets
from jaxpt.data._tf import seqio, tf
from jaxpt.data.preprocessors.batched import one_record
from jaxpt.data.sources.opening import open_source
from jaxpt.errors import UserError
from tests import families
from tests.runs import assert_bit_equal, final

sys.path.insert(0, str(Path(__file__).parent))
LENGTH, TARGETS = 20, 12


def config(task, cache, run_dir="", **data):
    settings = {
        "source": "task", "task": task, "modules": ["t5_style_tasks"], "cache_dir": str(cache), "length": LENGTH,
        "batch_size": 8, "tokenizer": {"kind": "sentencepiece"},
    }  # fmt: skip
    objective = {"kind": "seq2seq", "targets_length": TARGETS}
    model = {"vocab_size": 1200}
    return families.config("t5", model=model, objective=objective, data=settings | data, run_dir=str(run_dir))


def prepare(*arguments, report=None, **options):
    """Without processes, however busy the machine is."""
    return datasets.prepare(config(*arguments, **options), report=report, workers=1)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def prepared(cache):
    """(task, **settings) → (its data, the lines that were said), once for all tests."""

    @functools.cache
    def made(task, **data):
        lines = []
        return prepare(task, cache, report=lines.append, **data), lines

    return made


def examples(task, **data):
    return open_source(config(task, "", **data).data, TARGETS)


def pairs(stream):
    """Inputs and targets of every record, without padding."""
    out = []
    for batch in stream.epoch(8):
        for row in range(8):
            sides = [
                batch[f"{side}_{name}_tokens"][row][batch[f"{side}_segment_ids"][row] > 0]
                for side, name in (("encoder", "input"), ("decoder", "target"))
            ]
            if sides[1].size:
                out.append(tuple(tuple(side.tolist()) for side in sides))
    return out


def seqios_own(task, split, seed):
    ds = seqio.TaskRegistry.get(task).get_dataset(
        {"inputs": LENGTH, "targets": TARGETS}, split, shuffle=False, seed=seed
    )
    return [(tuple(ex["inputs"].tolist()), tuple(ex["targets"].tolist())) for ex in ds.as_numpy_iterator()]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "passes"), [("style_denoise", 3), ("style_ask", 1)])
def test_the_examples_are_seqios_own(task, passes, prepared):
    data, _ = prepared(task, passes=passes)
    # SeqIO counts the place of the placeholder into its seeds: draws (of the inputs here) are those of another seed.
    wanted = [ex for seed in range(passes) for ex in seqios_own(task, "train", seed)]
    got = pairs(data.train)
    if task == "style_ask":
        assert got == wanted and len(got) < 90  # a filter
        assert got[0][1][-1] == data.vocabulary.eos
    else:
        assert [targets for _, targets in got] == [targets for _, targets in wanted]
        thirds = np.array_split(np.arange(len(got)), passes)
        inputs = [[got[i][0] for i in third] for third in thirds]
        assert inputs[0] != inputs[1] != inputs[2]  # other draws in every pass
        assert all(len(ex[0]) <= LENGTH and len(ex[1]) <= TARGETS and data.vocabulary.eos in ex[0] for ex in got)
    held = seqios_own(task, "validation", 0)
    assert [targets for _, targets in pairs(data.validation)] == [targets for _, targets in held]


@pytest.mark.slow
def test_the_tier_is_told(prepared):
    _, lines = prepared("style_ask", passes=1)
    assert any(line.startswith("data: deterministic: any step is reached at once") for line in lines)
    _, lines = prepared("style_denoise", passes=3)
    tier = next(line for line in lines if line.startswith("data: frozen"))
    assert "concatenate, split_tokens, drop_some may" in tier and "in 3 passes" in tier


@pytest.mark.parametrize(
    ("decorate", "tier"),
    [
        (one_record(), "deterministic"), (one_record(seeds=1), "frozen: ask"), (seqio.map_over_dataset, "frozen: ask"),
        (lambda function: lambda ds: ds.map(function), "frozen: "),
    ],
)  # fmt: skip
def test_a_preprocessor_says_that_it_maps_one_to_one(decorate, tier):
    def ask(x):
        return x

    import t5_style_tasks  # noqa: F401 (registers them)

    of = seqio.TaskRegistry.get("style_train_only")
    tokenize, append_eos = of.preprocessors[1:]
    preprocessors = [decorate(ask), tokenize, append_eos]
    seqio.TaskRegistry.add("style_said", of.source, output_features=of.output_features, preprocessors=preprocessors)
    try:
        assert examples("style_said").tier.startswith(tier)
    finally:
        seqio.TaskRegistry.remove("style_said")


@pytest.mark.slow
def test_the_stream_seeks_and_is_a_permutation(cache, prepared):
    data, _ = prepared("style_denoise", passes=3)
    whole = list(itertools.islice(data.train.batches(), 12))
    again = list(itertools.islice(prepare("style_denoise", cache, passes=3).train.batches(7), 5))
    assert all((a[k] == b[k]).all() for a, b in zip(whole[7:], again, strict=True) for k in a)
    next(data.train.batches(10**9))


@pytest.mark.slow
def test_examples_are_held_out_where_there_is_no_validation_split(cache):
    data = prepare("style_train_only", cache, validation_fraction=0.2)
    train, held = pairs(data.train), pairs(data.validation)
    assert sorted(train + held) == sorted(seqios_own("style_train_only", "train", 0))
    assert 5 < len(held) < 40


def test_the_tasks_vocabulary_is_taken_and_another_refused(cache, tmp_path):
    data = prepare("style_ask", cache, tmp_path / "run")
    import t5_style_tasks

    text = "What number is it?"
    assert data.tokenizer.encode(text) == t5_style_tasks.VOCABULARY.encode(text)
    assert data.vocabulary.sentinels == 20
    again = prepare("style_ask", cache, tmp_path / "run")
    assert again.fingerprint == data.fingerprint
    other = tmp_path / "other.txt"
    other.write_text("\n".join(f"{i} apples and pears" for i in range(200)))
    from jaxpt.config import TokenizerConfig
    from jaxpt.data import tokenizers

    tokenizers.train(other.read_text().split("\n"), TokenizerConfig(kind="sentencepiece"), 150, tmp_path / "sp")
    tokenizer = {"kind": "sentencepiece", "path": str(tmp_path / "sp")}
    with pytest.raises(UserError, match="is not the vocabulary of style_ask's inputs"):
        prepare("style_ask", cache, tokenizer=tokenizer)


def write_as_seqio_does(task, split, directory, shards):
    """The files of seqio_cache_tasks (seqio/beam_utils.py): tf.Examples in shards, info and stats as JSON."""
    directory.mkdir(exist_ok=True)
    ds = task.preprocess_precache(task.source.get_dataset(split, shuffle=False), seed=0)
    spec = {k: {"dtype": v.dtype.name, "shape": v.shape.as_list()} for k, v in ds.element_spec.items()}
    records = []
    for ex in ds.as_numpy_iterator():
        features = {}
        for name, value in ex.items():
            if isinstance(value, bytes):
                features[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
            else:
                features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=np.ravel(value).tolist()))
        records.append(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    for n in range(shards):
        path = directory / f"{split}.tfrecord-{n:05d}-of-{shards:05d}"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for record in records[n::shards]:
                writer.write(record)
    info = {"features": spec, "num_shards": shards, "seqio_version": seqio.__version__}
    (directory / f"info.{split}.json").write_text(json.dumps(info))
    (directory / f"stats.{split}.json").write_text(json.dumps({"examples": len(records)}))


@pytest.mark.slow
def test_a_cache_of_seqio_is_read(cache, prepared, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxpt.data.sources.examples.SHARD_EXAMPLES", 10)
    import t5_style_tasks

    may_read = True

    def documents(split, shuffle_files=False, seed=None):
        assert may_read, "what is in the cache is not read again"
        return t5_style_tasks.documents(split, shuffle_files, seed)

    like, source = seqio.TaskRegistry.get("style_ask"), seqio.FunctionDataSource(documents, ["train", "validation"])
    task = seqio.TaskRegistry.add(
        "style_cached", source=source, preprocessors=like.preprocessors, output_features=like.output_features
    )
    try:
        with pytest.raises(UserError, match="holds no cache of style_cached"):
            examples("style_cached", task_cache=str(tmp_path))
        for split in ("train", "validation"):
            write_as_seqio_does(task, split, tmp_path / "style_cached", shards=3)
        (tmp_path / "style_cached" / "COMPLETED").write_text("")
        may_read = False
        cached = prepare("style_cached", cache, task_cache=str(tmp_path))
    finally:
        seqio.TaskRegistry.remove("style_cached")
    assert len(cached.stores["train"].manifest["shards"]) == 3
    assert sorted(pairs(cached.train)) == sorted(pairs(prepared("style_ask", passes=1)[0].train))


@pytest.mark.slow
def test_a_registered_mixture_is_mixed(prepared):
    data, lines = prepared("style_both")
    assert set(data.summary) == {f"{t}/{s}" for t in ("style_denoise", "style_ask") for s in ("train", "validation")}
    asked = data.tokenizer.encode("number?")[:3]
    batches = itertools.islice(data.train.batches(), 20)
    rows = [row for batch in batches for row in batch["encoder_input_tokens"]]
    share = sum(row[:3].tolist() == asked for row in rows) / len(rows)
    assert abs(share - 0.25) < 0.03
    assert [line.partition(":")[0] for line in lines if "any step is reached" in line] == ["style_ask", "style_denoise"]


@pytest.mark.slow
def test_a_run_is_resumed_exactly(cache, tmp_path, capsys):
    import yaml

    from jaxpt import cli

    tree = configs.dump(config("style_both", cache)) | {"log": {"tensorboard": False}, "mesh": {"data": 8}}
    tree["data"]["packing"], tree["model"]["layers"], tree["checkpoint"]["every"] = True, 1, 4
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    recipe = str(tmp_path / "recipe.yaml")
    assert cli.main(["train", recipe, f"run_dir={tmp_path / 'whole'}", "train.steps=6"]) == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "6")
    assert cli.main(["train", recipe, f"run_dir={tmp_path / 'parts'}", "train.steps=6"]) == 0
    assert_bit_equal(*(final(tmp_path / name, 6) for name in ("whole", "parts")))
    said = capsys.readouterr().out.replace("\n", " ")
    assert "style_denoise: frozen: concatenate" in said and "resuming from step 4" in said


@pytest.mark.parametrize(
    ("task", "data", "words"),
    [
        ("style_aks", {}, "did you mean style_ask"),
        ("style_without_end", {}, "repeats without end"),
        ("style_ask", {"source": "builtin"}, "data.source: task and data.task"),
    ],
)
def test_mistakes_are_named_in_one_line(task, data, words, cache):
    with pytest.raises(UserError, match=words) as error:
        prepare(task, cache, **data)
    assert "\n" not in str(error.value)


def test_inputs_are_not_dropped_silently(cache):
    settings = config("style_ask", cache)
    with pytest.raises(UserError, match=r"has inputs and targets; objective.kind: seq2seq trains on both"):
        open_source(settings.data)
