import functools
import itertools
import json
import sys
import threading

import numpy as np
import pytest
from pydantic import create_model

from jaxpt.config import TokenizerConfig
from jaxpt.data import datasets, fingerprint, run_tokenizer, seqio_tasks, tokenizers
from jaxpt.data._tf import seqio, tf
from jaxpt.data.calls import Call
from jaxpt.data.records import cache as records
from jaxpt.data.sources.opening import open_source
from jaxpt.data.stream import order
from jaxpt.data.stream.order import permuted
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.data.tokenizers.rust_tokenizers import RustTokenizer
from jaxpt.data.vocabularies import to_seqio
from jaxpt.errors import UserError
from tests import families, fine_tuning
from tests.data.seqio_task import make_task
from tests.waiting import LIMIT

LINES = [
    f"Sentence {i} speaks of {w}. It goes on, and ends." for i in range(30) for w in ("cats", "dogs", "mice", "birds")
]
SIZES = {"t5": 200, "bert": 120, "gpt2": 300}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text("\n".join(LINES))
    return path


def config(family, text, cache, run_dir="", objective=None, **data):
    settings = {"path": str(text), "cache_dir": str(cache), "validation_fraction": 0.15, "length": 24, "batch_size": 8}
    return families.config(
        family,
        model={"vocab_size": SIZES[family]},
        data=settings | data,
        run_dir=str(run_dir),
        objective=objective or {},
    )


@pytest.fixture(scope="module")
def prepared(text, cache):
    """Family → its data, made once for all tests."""
    return functools.cache(lambda family: datasets.prepare(config(family, text, cache), workers=1))


@pytest.fixture(scope="module")
def byte_level(prepared, tmp_path_factory):
    """What `data.tokenizer` names a saved vocabulary of GPT-2 by."""
    folder = tmp_path_factory.mktemp("vocabulary")
    prepared("gpt2").tokenizer.save(folder)
    return {"kind": "bpe", "path": str(folder)}


@pytest.mark.parametrize("family", families.FAMILIES)
def test_from_text_to_the_declared_features(family, text, cache, prepared):
    data = prepared(family)
    declared = config(family, text, cache).objective.data_spec(24).features
    for batch in (next(data.train.batches(1000)), next(data.validation.epoch(8))):
        assert {k: (v.shape[1:], v.dtype.name) for k, v in batch.items()} == declared
    assert data.vocabulary.size <= SIZES[family]
    assert data.summary["train"]["documents"] + data.summary["validation"]["documents"] == len(LINES)
    assert data.summary["train"]["records"] == len(data.train)
    assert json.loads(json.dumps(data.fingerprint))["records"] == data.fingerprint["records"]
    example = data.train.example(3)
    assert "tokens" in example and example["origin"].shape == (3,)


def test_the_second_time_is_found_in_the_cache(text, cache, prepared, monkeypatch):
    first = prepared("gpt2")
    monkeypatch.setattr(run_tokenizer.tokenizers, "train", None)
    monkeypatch.setattr(seqio.Task, "preprocess_precache", None)
    again = datasets.prepare(config("gpt2", text, cache))
    assert json.loads(json.dumps(again.fingerprint)) == json.loads(json.dumps(first.fingerprint))
    batches = [next(data.train.batches()) for data in (first, again)]
    assert all((batches[0][k] == batches[1][k]).all() for k in batches[0])


@pytest.mark.slow
def test_any_change_of_what_determines_records_makes_new_ones(text, cache, tmp_path):
    def names():
        return {p.name for p in (cache / "records").iterdir()}

    datasets.prepare(config("gpt2", text, cache))
    before = names()
    datasets.prepare(config("gpt2", text, cache, batch_size=4, readers=1))
    assert names() == before
    other = tmp_path / "a.txt"
    other.write_text("\n".join(LINES[::-1]))
    for changed in (
        {"length": 20},
        {"validation_fraction": 0.3},
        {"documents": "blank_line", "validation_path": str(text)},
    ):
        data = datasets.prepare(config("gpt2", text, cache, **changed))
        assert len(names()) > len(before) and data.fingerprint["order"] == (4 if "documents" in changed else 3)
        before = names()
    older = datasets.prepare(config("gpt2", text, cache, **changed), order=3)
    assert len(names()) > len(before) and older.fingerprint["order"] == 3, "runs keep the cuts that they had"
    before = names()
    datasets.prepare(config("gpt2", other, cache))
    assert len(names()) > len(before)


@pytest.mark.slow
def test_a_setting_of_the_data_that_says_nothing_makes_new_records(text, cache):
    def records(value):
        settings = config("gpt2", text, cache)
        cls = create_model("Fresh", __base__=type(settings.data), fresh=(int, 0))
        data = cls.model_construct(**dict(settings.data), fresh=value)
        return datasets.prepare(settings.model_copy(update={"data": data})).stores["train"].directory

    assert records(1) == records(1) != records(2)


@pytest.mark.slow
def test_another_version_of_a_vocabularys_texts_makes_new_records(text, cache, tmp_path, monkeypatch):
    """A run whose texts have the same ids by both goes on: its records have the checksum that they had."""
    tokenizers.train(LINES, TokenizerConfig(kind="sentencepiece", extra_ids=8), 90, tmp_path / "words")
    path = tmp_path / "words" / "tokenizer.json"

    def prepared_now():
        tokenizer = {"kind": "sentencepiece", "path": str(path), "extra_ids": 8}
        return datasets.prepare(config("t5", text, cache, tokenizer=tokenizer), workers=1)

    now = prepared_now()
    monkeypatch.setattr(RustTokenizer, "text_version", 1)
    before = prepared_now()
    assert now.stores["train"].directory != before.stores["train"].directory
    assert not fingerprint.changes(before.fingerprint, now.fingerprint)


@pytest.mark.slow
def test_another_version_of_labels_makes_new_records_of_tasks_alone(text, cache, tmp_path, monkeypatch):
    rows = [{"tokens": ["a", "film", f"{n}"], "tags": ["O", "O", "B-good"]} for n in range(40)]
    tagging = fine_tuning.recipe(tmp_path, made=rows, task={"kind": "tagging"})

    def directories():
        recipes = tagging, config("bert", text, cache)
        return [datasets.prepare(recipe, workers=1).stores["train"].directory for recipe in recipes]

    before = directories()
    monkeypatch.setattr(Tokenizer, "label_version", 2)
    after = directories()
    assert (before[0] == after[0], before[1] == after[1]) == (False, True)


@pytest.mark.slow
def test_runs_keep_the_null_fields_of_their_dialogues(cache, byte_level, tmp_path):
    """Records without them have another number, where a file may have them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    for n in range(20):
        call = {"name": "add", "arguments": {"ab"[n % 2]: n}}
        answer = {"role": "assistant", "tool_calls": [call]}
        rows.append({"messages": [{"role": "user", "content": f"Hi {n}"}, answer]})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "calls.jinja").write_text(
        "{% for m in messages %}{{ m.role }}{% generation %}{{ m.tool_calls | tojson if m.tool_calls else m.content }}"
        "{{ eos_token }}{% endgeneration %}{% endfor %}{% if add_generation_prompt %}assistant{% endif %}"
    )
    orders, tokens = [], []
    for name, keys in (("a.jsonl", {}), ("a.parquet", {}), ("a.parquet", {"order": 3})):
        recipe = families.config(
            "gpt2", model={"vocab_size": 300, "max_positions": 128}, task={"kind": "dialogue"},
            objective={"kind": "dialogue", "template": str(tmp_path / "calls.jinja")},
            data={
                "path": str(tmp_path / name), "validation_fraction": 0.15, "length": 128, "batch_size": 8,
                "cache_dir": str(cache), "tokenizer": byte_level,
            },
        )  # fmt: skip
        data = datasets.prepare(recipe, workers=1, **keys)
        orders.append(data.fingerprint["order"])
        tokens.append(data.summary["train"]["tokens"])
    assert orders == [3, 5, 3] and tokens[0] == tokens[1] < tokens[2]


@pytest.mark.slow
def test_another_field_makes_another_vocabulary(cache, tmp_path):
    path = tmp_path / "two.jsonl"
    path.write_text("".join(json.dumps({"a": line, "b": line[::-1]}) + "\n" for line in LINES))
    one, other = (datasets.prepare(config("gpt2", path, cache, field=field)) for field in "ab")
    assert one.tokenizer.digest() != other.tokenizer.digest()


def test_a_blank_file_ends_no_run_that_is_under_way(text, byte_level, tmp_path):
    """The first one is a shard by itself, which a run that reads beside waits for; all are counted in one note."""
    for name, content in {"a.txt": "", "b.txt": "\n\n", "c.txt": text.read_text(), "d.txt": " \n"}.items():
        (tmp_path / name).write_text(content)
    lines, settings = [], {"cache": tmp_path / "cache", "tokenizer": byte_level}
    data = datasets.prepare(config("gpt2", f"{tmp_path}/*.txt", **settings), report=lines.append, beside=True)
    assert data.stores["train"].wait() and data.summary["train"]["documents"] > 80
    assert next(data.train.batches())["decoder_target_tokens"].shape[0] == 8
    of_files = [line for line in lines if "files" in line]
    skipped = f"train: 3 of 4 files without a document, skipped: {tmp_path}/a.txt, {tmp_path}/b.txt and 1 more"
    assert of_files == [f"data.path: {tmp_path}/*.txt: 4 files", skipped]


@pytest.mark.slow
def test_an_edited_task_of_ones_own_makes_new_records(cache, byte_level, tmp_path, monkeypatch):
    """`data.modules` are a setting too, which must not stand in the place of their digests."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def records(word):
        (tmp_path / "own_task.py").write_text(
            "import seqio\nimport tensorflow as tf\n\n\ndef documents(split, shuffle_files):\n"
            f"    return tf.data.Dataset.from_tensor_slices({{'text': [f'{{i}} {word}' for i in range(90)]}})\n\n\n"
            "seqio.TaskRegistry.add('own_text', seqio.FunctionDataSource(documents, ['train']), preprocessors=[],\n"
            "    output_features={'text': seqio.Feature(seqio.PassThroughVocabulary(300))})\n"
        )
        sys.modules.pop("own_task", None)
        settings = {"source": "task", "task": "own_text", "modules": ["own_task"], "path": None}
        try:
            data = datasets.prepare(config("gpt2", "", cache, tokenizer=byte_level, **settings))
            return data.stores["train"].directory
        finally:
            seqio.TaskRegistry.remove("own_text")

    assert records("cats") == records("cats") != records("dogs")


def test_edited_code_of_ones_own_makes_new_records(text, cache, tmp_path, monkeypatch):
    """A finder of spans, and what it imports from beside it; what lies elsewhere is not its code."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def made(word):
        (tmp_path / "own_words.py").write_text(f"import json\nWORD = {word!r}\n\n\ndef word():\n    return WORD\n")
        (tmp_path / "own_finder.py").write_text(
            "import numpy\nfrom own_words import word\n\n\n"
            "def find(text):\n    at = text.find(word())\n    return [(at, at + len(word()))] if at >= 0 else []\n"
        )
        for name in ("own_words", "own_finder"):
            sys.modules.pop(name, None)
        objective = {"kind": "salient_spans", "finder": "own_finder.find", "targets_length": 12}
        data = datasets.prepare(config("t5", text, cache, objective=objective, length=80))
        return data.fingerprint["records"]["train"], data.summary["train"]["records"]

    first, of_cats = made("cats")
    assert made("cats") == (first, of_cats)
    as_imported = seqio_tasks.code([Call("own_finder.find")])
    (tmp_path / "own_words.py").write_text("an edit, which this process does not run")
    assert seqio_tasks.code([Call("own_finder.find")]) == as_imported
    other, of_goes = made("goes on")
    assert first != other and of_goes > 3 * of_cats
    mine = seqio_tasks.code([Call("own_finder.find"), Call("documents.tokenize")])
    assert set(mine) == {"own_finder", "own_words", "jaxpt.data.preprocessors.documents"}
    assert set(seqio_tasks.code([Call("windows.cut", uses=("own_words.word",))])) >= {"own_words"}


@pytest.mark.slow
def test_the_run_keeps_its_vocabulary(text, cache, tmp_path, monkeypatch):
    run = tmp_path / "run"
    data = datasets.prepare(config("t5", text, cache, run))
    assert (run / "tokenizer" / "spiece.model").is_file()
    monkeypatch.setattr(run_tokenizer.tokenizers, "train", None)
    moved = run.rename(tmp_path / "moved")
    again = datasets.prepare(config("t5", text, tmp_path / "elsewhere", moved))
    assert again.tokenizer.digest() == data.tokenizer.digest()
    assert again.fingerprint == data.fingerprint
    unsaved = tmp_path / "looked_at"
    datasets.prepare(
        config("t5", text, cache, unsaved, tokenizer={"kind": "sentencepiece", "path": str(moved / "tokenizer")}),
        save=False,
    )
    assert not unsaved.exists()


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


@pytest.mark.slow
def test_a_damaged_vocabulary_is_trained_again_in_the_cache_and_refused_in_a_run(text, tmp_path):
    settings, said = config("bert", text, tmp_path / "cache", tmp_path / "run"), []
    whole = datasets.prepare(settings).tokenizer
    (cached,) = (tmp_path / "cache" / "tokenizers").iterdir()
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "checksums.json"):
        flip(cached / name)
        again = datasets.prepare(config("bert", text, tmp_path / "cache"), report=said.append).tokenizer
        assert again.digest() == whole.digest() and again.vocabulary == whole.vocabulary
        assert [line for line in said if str(cached / name) in line or name == "checksums.json"]
        assert any("training the vocabulary again" in line for line in said)
        said.clear()
    datasets.prepare(config("bert", text, tmp_path / "cache"), report=said.append)
    assert not [line for line in said if "again" in line]
    flip(tmp_path / "run" / "tokenizer" / "tokenizer.json")
    with pytest.raises(UserError, match=r"run/tokenizer/tokenizer\.json: is altered"):
        datasets.prepare(settings)


def test_a_vocabulary_larger_than_the_models(text, cache, byte_level):
    small = families.config(
        "gpt2", model={"vocab_size": 260}, data={"path": str(text), "cache_dir": str(cache), "tokenizer": byte_level}
    )
    with pytest.raises(UserError, match=r"300 token ids, but model\.vocab_size is 260"):
        datasets.prepare(small)


@pytest.mark.slow
def test_phases_differ_in_order_and_settings(text, cache):
    phases = [{"steps": 5}, {"set": {"data.length": 16}}]
    settings = families.config(
        "gpt2", model={"vocab_size": 300}, train={"steps": 10, "phases": phases},
        data={"path": str(text), "cache_dir": str(cache), "length": 24, "validation_fraction": 0.15},
    )  # fmt: skip
    first, second = (next(datasets.prepare(settings, phase).train.batches()) for phase in (0, 1))
    assert first["decoder_input_tokens"].shape[1] == 24
    assert second["decoder_input_tokens"].shape[1] == 16


def test_mistakes_inside_tensorflow_come_out_in_one_line(cache, byte_level, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"text": line}) for line in LINES) + '\n{"text": 1}')
    with pytest.raises(UserError, match=r"line 121 \(data.field\): column 'text' wants text, got 1"):
        datasets.prepare(config("gpt2", path, cache, tokenizer=byte_level))
    assert not list(cache.rglob("*.partial"))


def test_the_objective_is_asked_first(text, cache):
    with pytest.raises(UserError, match="too short for masked_lm"):
        datasets.prepare(config("bert", text, cache, length=4))


def test_validation_does_not_follow_the_training_draws(prepared):
    data = prepared("bert")
    fixed = [list(data.validation.epoch(8)) for _ in range(2)]
    assert all((a[k] == b[k]).all() for a, b in zip(*fixed, strict=True) for k in a)
    weights = np.concatenate([b["masked_weights"] for b in fixed[0]])
    assert (weights.sum(1) > 0).sum() == len(data.validation)


def test_every_token_of_the_training_text_is_a_target_once_an_epoch(text, cache, prepared):
    settings, data = config("gpt2", text, cache), prepared("gpt2")
    batches = itertools.islice(data.train.epoch(8), None)
    targets = np.concatenate([b["decoder_target_tokens"][b["decoder_loss_weights"] > 0] for b in batches])
    ends = (targets == data.vocabulary.eos).sum()
    assert ends == data.summary["train"]["documents"]
    spec, vocabulary = settings.objective.data_spec(24), to_seqio(data.tokenizer)
    calls = spec.transforms(data.vocabulary, settings.seed)
    task = make_task("data", open_source(settings.data), calls, spec.features, vocabulary)
    examples = task.get_dataset(None, "train", shuffle=False)
    assert len(targets) == sum(int(tf.reduce_sum(x["decoder_loss_weights"])) for x in examples)


@pytest.mark.slow
def test_a_task_of_token_ids_feeds_an_objective(cache, byte_level):
    def documents(split, shuffle_files):
        return tf.data.Dataset.range(80).map(lambda i: {"targets": tf.fill([9], tf.cast(i + 3, tf.int32))})

    feature = {"targets": seqio.Feature(seqio.PassThroughVocabulary(300), add_eos=False)}
    seqio.TaskRegistry.add(
        "own_ids", seqio.FunctionDataSource(documents, ["train"]), output_features=feature, preprocessors=[]
    )
    try:
        settings = {"source": "task", "task": "own_ids", "path": None}
        with pytest.raises(UserError, match=r"data\.tokenizer\.path is missing"):
            datasets.prepare(config("gpt2", "", cache, **settings))
        data = datasets.prepare(config("gpt2", "", cache, tokenizer=byte_level, **settings))
        batch = next(data.train.batches())
        targets = batch["decoder_target_tokens"][batch["decoder_loss_weights"] > 0]
        assert set(np.unique(targets)) <= {*range(3, 83), data.vocabulary.eos}
    finally:
        seqio.TaskRegistry.remove("own_ids")


@pytest.mark.slow
def test_batches_are_the_same_while_records_are_made(text, cache, byte_level, tmp_path, monkeypatch):
    """From the first shard on, in any number of threads; checksum and counts come when all shards are there."""
    monkeypatch.setitem(order.SHARDINGS, 3, order.Sharding(600, 8))
    monkeypatch.setattr(records, "_STARTUP", 1e9)  # no processes
    settings = {"tokenizer": byte_level, "batch_size": 4}
    whole = datasets.prepare(config("gpt2", text, tmp_path / "whole", **settings), workers=1)
    expected = list(itertools.islice(whole.train.batches(), 60))
    held_out = list(whole.validation.epoch(4))
    gate, make_shard, asked = threading.Event(), records.make_shard, []

    def gated(work, number, *arguments):
        asked.append(number) if work._split == "train" else None
        assert (work._split == "train" and len(asked) == 1) or gate.wait(LIMIT)
        return make_shard(work, number, *arguments)

    monkeypatch.setattr(records, "make_shard", gated)
    data = datasets.prepare(config("gpt2", text, tmp_path / "beside", readers=1, **settings), beside=True)
    try:
        assert data.fingerprint["records"]["train"] is None and data.summary["train"]["shards_left"] == 9
        assert data.fingerprint["records"]["validation"] is None and data.summary["validation"]["records"] == 0
        assert data.fingerprint["order"] == 3 and data.text_per_row == whole.text_per_row
        first = data.train.sample(256)
        assert len(first["decoder_target_tokens"]) > 4
    finally:
        gate.set()
    batches = data.train.batches()
    for number, batch in enumerate(expected):
        for name, value in next(batches).items():
            np.testing.assert_array_equal(value, batch[name], f"{number} {name}")
    assert len(data.train) == len(whole.train) < 60 * 4
    late = next(data.train.batches(45))
    np.testing.assert_array_equal(late["decoder_target_tokens"], expected[45]["decoder_target_tokens"])
    for batch, expected_batch in zip(data.validation.epoch(4), held_out, strict=True):
        for name, value in batch.items():
            np.testing.assert_array_equal(value, expected_batch[name], name)
    for store in data.stores.values():
        store.manifest  # noqa: B018 (waits for it)
    assert data.fingerprint == whole.fingerprint and data.summary == whole.summary


def test_the_first_order_of_records_is_what_it_was(text, cache, byte_level):
    """Of runs from before its version: permutations of all records, and no field in the fingerprint."""
    data = datasets.prepare(config("gpt2", text, cache, tokenizer=byte_level), workers=1, order=1)
    (task,) = data.train.tasks
    assert "order" not in data.fingerprint and "stores" not in data.fingerprint
    batch = next(data.train.batches())["decoder_target_tokens"]
    rows = permuted(np.arange(8), len(task), seqio_tasks.key(task.seed, "order"), np.zeros(8, np.int64))
    np.testing.assert_array_equal(batch, data.train.rows(rows)["decoder_target_tokens"])
    newest = datasets.prepare(config("gpt2", text, cache, tokenizer=byte_level), workers=1)
    assert (next(newest.train.batches())["decoder_target_tokens"] != batch).any()
    packed = datasets.prepare(config("gpt2", text, cache, tokenizer=byte_level, packing=True), workers=1)
    assert "order" not in packed.fingerprint
