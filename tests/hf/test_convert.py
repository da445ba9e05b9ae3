"""`jaxpt import` and `jaxpt export`, and runs that start from what was imported."""

import functools
import io
import json
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import traverse_util

from jaxpt import config as configs
from jaxpt import hf
from jaxpt.cli import main
from jaxpt.data import tokenizers
from jaxpt.errors import UserError
from jaxpt.hf import convert, files, imported, verify
from jaxpt.hf.verify import Difference
from jaxpt.models.heads import masked_lm
from jaxpt.models.network import Network
from jaxpt.train import checkpoint, initial, run_dir, state, weights
from tests import families, fine_tuning
from tests.hf.states import as_run
from tests.hf.test_directory import fresh
from tests.hf.test_llama2c import write as llama2c
from tests.models.helpers import EVERY


def model_config(family, **options):
    return families.config(family, model={**families.MODELS[family], "layers": 1, "dtype": "auto", **options}).model


@pytest.fixture(scope="module")
def texts():
    return ["the cat sat on the mat", "a dog ran after the cat", "no one saw the dog run away"] * 5


def made(path, family, texts, **save):
    """A directory in Hugging Face's form, with a vocabulary; returns its parameters."""
    model, params = fresh(model_config(family, vocab_size=300 if family == "gpt2" else 60))
    hf.save(path, model, params, **save)
    size = {"gpt2": 270, "t5": 50, "bert": 50}[family]
    settings = configs.TokenizerConfig(kind=families.TOKENIZERS[family], extra_ids=5 if family == "t5" else None)
    tokenizers.train(texts, settings, size, path)
    return params


@pytest.fixture(scope="module")
def source(texts, tmp_path_factory):
    """`made` of a family, once: (the directory, its parameters). A test that changes the directory copies it."""

    @functools.cache
    def of(family):
        path = tmp_path_factory.mktemp(family) / "hf"
        return path, made(path, family, texts)

    return of


@pytest.fixture(scope="module")
def imported_bert(source, tmp_path_factory):
    """The import of a BERT."""
    run = tmp_path_factory.mktemp("imported") / "run"
    convert.import_weights(source("bert")[0], run, report=lambda line: None)
    return run


@pytest.mark.parametrize("family", families.FAMILIES)
def test_there_and_back(family, source, tmp_path, capsys):
    directory, params = source(family)
    out = f"{tmp_path}/../{tmp_path.name}/run"  # as a user in another folder may write it
    assert main(["import", str(directory), out]) == 0
    assert "parameters from" in capsys.readouterr().out
    jax.tree.map(np.testing.assert_array_equal, params, weights.read(tmp_path / "run", 0))
    config = configs.load(tmp_path / "run")
    assert config.model == model_config(family, vocab_size=config.model.vocab_size)
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    jax.tree.map(np.testing.assert_array_equal, params, hf.load(tmp_path / "out")[1])
    before, after = (tokenizers.load(side) for side in (directory, tmp_path / "out"))
    assert before.digest() == after.digest()
    keys = json.loads((tmp_path / "out" / "config.json").read_text())
    assert keys["pad_token_id"] == (None if family == "gpt2" else before.vocabulary.pad)  # which has no such token


@pytest.mark.parametrize(
    ("name", "kind"),
    [("t5", "span_corruption"), ("bart", "bart"), ("mbart", "mbart"), ("gpt2", "causal_lm"), ("bert", "masked_lm")],
)
def test_an_import_gets_the_objective_of_its_architecture(name, kind):
    assert imported.objective_of(EVERY[name](), ())["kind"] == kind


def test_the_dtype_is_kept_and_changed_on_request(texts, tmp_path):
    made(tmp_path / "hf", "bert", texts, dtype=ml_dtypes.bfloat16)
    convert.import_weights(tmp_path / "hf", tmp_path / "run", report=lambda line: None)
    assert {np.dtype(d) for d in weights.Saved(tmp_path / "run", 0).dtypes.values()} == {np.dtype(ml_dtypes.bfloat16)}
    for asked, dtype in ((None, ml_dtypes.bfloat16), ("float32", np.float32)):
        convert.export(tmp_path / "run", tmp_path / str(asked), dtype=asked, report=lambda line: None)
        assert {x.dtype for x in jax.tree.leaves(hf.load(tmp_path / str(asked))[1])} == {np.dtype(dtype)}


def test_an_import_is_no_run_to_go_on_with(imported_bert):
    config = families.config("bert", model={**families.MODELS["bert"], "vocab_size": 60, "layers": 1})
    reader = checkpoint.Checkpoints(imported_bert, config.checkpoint, read_only=True)
    with pytest.raises(UserError, match=r"holds imported weights alone.*init_from\.path="):
        reader.restore(state.setup(config, jax.devices()[:1]), 0)
    reader.close()


def test_nothing_is_left_behind_where_an_import_fails(source, tmp_path, capsys):
    shutil.copytree(source("bert")[0], tmp_path / "hf")
    (tmp_path / "hf" / "model.safetensors").write_bytes(b"")
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "run")]) == 2
    assert "not a valid safetensors file" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "hf")]) == 2
    assert "already exists" in capsys.readouterr().err


def test_a_partial_import_of_nothing_is_an_error(source, tmp_path, capsys):
    shutil.copytree(source("bert")[0], tmp_path / "hf")
    known = {f"foo.{name}": x for name, x in files.Tensors(tmp_path / "hf").items()}
    files.write(tmp_path / "hf", {name: (x.shape, x.dtype) for name, x in known.items()}, known.items())
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "run"), "--partial"]) == 2
    assert "no tensor matches a parameter, the whole model would be random: foo.bert" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["m.bin", "--verify"], "m.bin: is a file, read as llama2.c's, which has no --verify; leave it out"),
        (["m.bin", "--partial", "--ignore", "x"], "which has no --partial, --ignore; leave it out"),
        (["m.bin", "--base", "hf"], "m.bin: --base is of a low-rank adapter, and it has no adapter_config.json;"),
        (
            ["hf", "--base", "hf"],
            "hf: --base is of a low-rank adapter, and it has no adapter_config.json;",
        ),
        (["gone", "--base", "hf", "--verify"], "gone: no such directory"),
    ],
)
def test_options_that_would_do_nothing_are_refused(words, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    llama2c(tmp_path / "m.bin")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text("{}")
    source, *options = words
    assert main(["import", source, "run", *options]) == 2
    message = capsys.readouterr().err
    assert said in message and message.count("\n") == 1 and not (tmp_path / "run").exists()


def test_of_a_stack_the_layers_that_are_there_are_kept(texts, tmp_path, capsys):
    """Another layer is drawn, as it is in a model that is random as a whole."""
    query = "model/encoder/segment_0/block_0/attention/query/kernel"
    network, params = fresh(model_config("bert", vocab_size=60, layers=3))
    hf.save(tmp_path / "hf", network, params)
    tokenizers.train(texts, configs.TokenizerConfig(kind="wordpiece"), 50, tmp_path / "hf")
    known = dict(files.Tensors(tmp_path / "hf"))
    del known["bert.encoder.layer.1.attention.self.query.weight"]
    del known["bert.embeddings.LayerNorm.bias"]
    files.write(tmp_path / "hf", {name: (x.shape, x.dtype) for name, x in known.items()}, known.items())
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "run"), "--partial"]) == 0
    assert f"initialised at random: model/embed_norm/bias, {query}[1]\n" in capsys.readouterr().out
    drawn = traverse_util.flatten_dict(network.init(jax.random.key(0)), sep="/")
    wanted = traverse_util.flatten_dict(params, sep="/")
    wanted[query] = np.stack([wanted[query][0], drawn[query][1], wanted[query][2]])
    wanted["model/embed_norm/bias"] = drawn["model/embed_norm/bias"]
    for taken in (weights.read(tmp_path / "run", 0), hf.load(tmp_path / "hf", partial=True)[1]):
        taken = traverse_util.flatten_dict(taken, sep="/")
        for path, x in wanted.items():
            np.testing.assert_allclose(taken[path], x, rtol=1e-6, err_msg=path)


@pytest.mark.parity
def test_verify_names_what_is_not_finite(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    model, params = fresh(model_config("bert"))
    hf.save(tmp_path, model, params)
    params["heads"]["masked_lm"]["bias"][3] = np.nan
    with pytest.raises(UserError, match="weights: heads/masked_lm/bias is not finite"):
        verify.verify(tmp_path, model, params)


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("name", ["albert", "xlm-roberta"])
def test_what_config_json_says_of_the_vocabulary_is_kept(name, texts, tmp_path):
    """A published directory has a bare SentencePiece model; its class alone knows what to do around it."""
    import sentencepiece

    hf.save(tmp_path / "hf", *fresh(EVERY["albert" if name == "albert" else "roberta"]()))
    keys = json.loads((tmp_path / "hf" / "config.json").read_text()) | {"model_type": name}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(keys))
    model, albert = io.BytesIO(), name == "albert"
    layout = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1} if albert else {}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text + " (b)." for text in texts]), model_writer=model, vocab_size=45,
        hard_vocab_limit=False, control_symbols=["[CLS]", "[SEP]", "[MASK]"] * albert,
        user_defined_symbols=["("] * albert, minloglevel=2, **layout,
    )  # fmt: skip
    file = {"albert": "spiece.model", "xlm-roberta": "sentencepiece.bpe.model"}[name]
    (tmp_path / "hf" / file).write_bytes(model.getvalue())
    convert.import_weights(tmp_path / "hf", tmp_path / "run", report=lambda line: None)
    convert.export(tmp_path / "run", tmp_path / "out", report=lambda line: None)
    before, after = (tokenizers.load(tmp_path / side) for side in ("hf", "out"))
    assert before.digest() == after.digest()
    assert (before.encode("A Cat") == before.encode("a cat")) == albert
    assert json.loads((tmp_path / "out" / "config.json").read_text())["pad_token_id"] == after.vocabulary.pad
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    given = [*texts[:3], "The ``Café'' (see b).", "A  dog"]
    assert theirs(given, add_special_tokens=False)["input_ids"] == after.encode_batch(given)


def test_what_is_said_of_differences():
    said, found = [], {"hidden": Difference(1e-6, 2.0), "logits": Difference(1e-6, 2.0)}
    verify.report_differences(found, said.append)
    assert said[-1] == "outputs equal Hugging Face's within rounding" and len(said) == 3
    found["logits"] = Difference(0.5, 2.0)
    with pytest.raises(UserError, match=r"^the outputs differ from Hugging Face's: logits$"):
        verify.report_differences(found, said.append)
    assert "logits" in said[-1] and said[-1].endswith("max difference 5.00e-01, max value 2 (relative 2.5e-01)")
    for value in (float("nan"), float("inf")):
        with pytest.raises(UserError, match=r": hidden$"):
            verify.report_differences({"hidden": Difference(value, 2.0)}, said.append)


@pytest.mark.parity
def test_a_failed_comparison_is_an_error_and_leaves_nothing(source, tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    command = ["import", str(source("bert")[0]), str(tmp_path / "run"), "--verify"]
    assert main(command) == 0
    assert "outputs equal Hugging Face's within rounding" in capsys.readouterr().out
    monkeypatch.setattr(verify, "TOLERANCE", 0.0)  # less than rounding
    export = ["export", str(tmp_path / "run"), str(tmp_path / "out"), "--verify"]
    for number, words in enumerate((export, [*command[:2], str(tmp_path / "again"), "--verify"])):
        assert main(words) == 2
        told = capsys.readouterr()
        assert "max difference " in told.out and "the outputs differ from Hugging Face's: " in told.err, number
        assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parity
def test_a_key_that_an_import_ignored_is_ignored_by_the_comparison_of_its_export(source, tmp_path, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    shutil.copytree(source("bert")[0], tmp_path / "hf")
    file = tmp_path / "hf" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"of_a_fork": 3}))
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "run"), "--ignore", "of_a_fork"]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--verify"]) == 0, capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "config.json").read_text())["of_a_fork"] == 3
    assert "outputs equal Hugging Face's within rounding" in capsys.readouterr().out


@pytest.mark.slow
def test_an_imported_directory_evaluates(source, texts, tmp_path, capsys):
    convert.import_weights(source("gpt2")[0], tmp_path / "run")
    (tmp_path / "text.txt").write_text("\n".join(texts * 8))
    text = tmp_path / "text.txt"
    options = [
        f"data.path={text}",
        f"data.validation_path={text}",
        "data.length=16",
        f"data.cache_dir={tmp_path / 'c'}",
    ]
    assert main(["eval", str(tmp_path / "run"), *options]) == 0, capsys.readouterr().err
    assert "at step 0" in capsys.readouterr().out


def start(source, family="bert", **options):
    """Starts a run of `family` from `source`; returns its state, how to draw a fresh one, and what was said."""
    model = options.pop("model", {})
    config = families.config(
        family, model={**families.MODELS[family], "vocab_size": 60, "layers": 1, **model},
        init_from={"path": str(source), **options},
    )  # fmt: skip
    said = []
    setup = state.setup(config, jax.devices()[:1])
    return initial.start(setup, config.init_from, said.append), setup.init, said


@pytest.mark.slow
def test_a_run_starts_from_a_hugging_face_directory_and_from_an_import(source, imported_bert):
    directory, params = source("bert")
    for path in (directory, imported_bert):
        begun, _, said = start(path, partial=True)
        jax.tree.map(np.testing.assert_array_equal, params, begun.params)
        assert int(begun.step) == 0 and len(said) == 1 and "parameters taken as they are" in said[0]


@pytest.mark.slow
def test_a_longer_position_table_repeats_the_shorter_one(source):
    directory, params = source("bert")
    begun, _, said = start(directory, model={"max_positions": 80})
    old, new = (np.asarray(p["model"]["position_embed"]["table"]) for p in (params, begun.params))
    np.testing.assert_array_equal(new, np.concatenate([old, old, old[:16]]))
    assert said[1] == "  fitted: model/position_embed/table"


@pytest.mark.slow
def test_another_vocabulary(source):
    directory, params = source("bert")
    with pytest.raises(UserError, match=r"its vocabulary has 60 ids, model.vocab_size is 70"):
        start(directory, model={"vocab_size": 70})
    old = params["model"]["token_embed"]["table"]
    begun, init, said = start(directory, model={"vocab_size": 70}, vocabulary="first")
    fresh_state = init()
    now, drawn = (np.asarray(s.params["model"]["token_embed"]["table"]) for s in (begun, fresh_state))
    np.testing.assert_array_equal(now[:60], old[:60])
    np.testing.assert_array_equal(now[60:], drawn[60:])
    assert said[1] == "  fitted: model/token_embed/table, heads/masked_lm/bias"
    begun, _, said = start(directory, model={"vocab_size": 70}, vocabulary="new")  # with the same seed
    now, drawn = (np.asarray(s.params["model"]["token_embed"]["table"]) for s in (begun, fresh_state))
    np.testing.assert_array_equal(now, drawn)
    assert any("new: " in line and "token_embed/table" in line for line in said)


def test_a_new_head_has_to_be_asked_for(tmp_path):
    model = model_config("bert", vocab_size=60)
    network, params = fresh(Network(model.build(), masked_lm.declare(model)))
    hf.save(tmp_path / "hf", network, params)
    with pytest.raises(UserError, match=r"lacks or has in another shape .*init_from\.partial=true"):
        start(tmp_path / "hf")
    begun, _, said = start(tmp_path / "hf", partial=True)
    jax.tree.map(np.testing.assert_array_equal, params["model"], begun.params["model"])
    assert any(line.startswith("  new: ") and "heads/sentence_pair" in line for line in said)


def test_a_model_of_other_sizes_is_told_by_its_keys(source):
    with pytest.raises(UserError, match=r"more; its model has model\.layers=1 model\.embed_dim=32; init_from\."):
        start(source("gpt2")[0], "gpt2", model={"vocab_size": 300, "layers": 3, "embed_dim": 16})
    with pytest.raises(UserError, match=r"; its model has model\.kind=gpt2; init_from\.partial=true"):
        start(source("gpt2")[0], "llama", model={"vocab_size": 300})


def test_a_start_from_which_nothing_is_taken_is_an_error(source):
    said = r"init_from\.partial: .*hf: none of its parameters fits this model, .* it has model/token_embed/table, "
    with pytest.raises(UserError, match=said):
        start(source("gpt2")[0], model={"embed_dim": 16, "max_positions": 8}, partial=True, vocabulary="first")


def run_of(path, family, texts):
    """A run directory as training leaves it, at step 0; returns its parameters."""
    path.mkdir()
    size = {"gpt2": 270, "t5": 50, "bert": 50}[family]
    settings = configs.TokenizerConfig(kind=families.TOKENIZERS[family], extra_ids=5 if family == "t5" else None)
    tokenizers.train(texts, settings, size, path / "tokenizer")
    model = {**families.MODELS[family], "vocab_size": 300, "layers": 1}
    config = families.config(
        family, run_dir=str(path), model=model, data={"tokenizer": settings.model_dump()}, optimizer={"ema_decay": 0.9}
    )
    run_dir.save_config(config)
    begun = state.setup(config, jax.devices()[:1]).init()
    kept = checkpoint.Checkpoints(path, config.checkpoint)
    kept.save(begun, {"phase": 0, "data": {}})
    kept.close()
    return begun.ema


SPAN = {"kind": "span_boundary", "max_span": 3, "position_dim": 6}


def test_a_head_that_their_class_has_not_is_left_out_and_named(tmp_path, capsys):
    """Of the whole model, and of its adapter."""
    query = "model/encoder/segment_0/block_0/attention/query/kernel"
    lora = {"targets": [query.removesuffix("/kernel")], "rank": 2, "alpha": 2.0}
    config = families.config(
        "bert", run_dir=str(tmp_path / "run"), model={"layers": 1}, objective=SPAN, train={"lora": lora}
    )
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((1, 32, 2), (1, 2, 32)))
    params = as_run(config, {f"adapter/{query}/a": a, f"adapter/{query}/b": b})
    for out, options in (("hf", []), ("peft", ["--adapter"])):
        assert main(["export", str(tmp_path / "run"), str(tmp_path / out), *options]) == 0
        assert capsys.readouterr().out.endswith("skipped, not in Hugging Face's class: span_boundary\n")
    theirs = files.Tensors(tmp_path / "hf")
    name = "bert.encoder.layer.0.attention.self.query"
    np.testing.assert_allclose(theirs[f"{name}.weight"], (params[query][0] + a[0] @ b[0]).T, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(theirs["cls.predictions.bias"], params["heads/masked_lm/bias"][:200])
    factors = files.Tensors(tmp_path / "peft", ("adapter_model.safetensors",))
    assert set(factors) == {f"base_model.model.{name}.lora_{x}.weight" for x in "AB"}
    np.testing.assert_array_equal(factors[f"base_model.model.{name}.lora_A.weight"], a[0].T)


def test_an_adapter_of_a_head_that_is_left_out_is_none_of_theirs(tmp_path, capsys):
    dense = "heads/span_boundary/dense_1/kernel"
    lora = {"targets": [dense.removesuffix("/kernel")], "rank": 2, "alpha": 2.0}
    config = families.config(
        "bert", run_dir=str(tmp_path / "run"), model={"layers": 1}, objective=SPAN, train={"lora": lora}
    )
    as_run(
        config, {f"adapter/{dense}/{x}": np.ones(shape, np.float32) for x, shape in (("a", (70, 2)), ("b", (2, 32)))}
    )
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--adapter"]) == 2
    assert "train.lora.targets: none of them is in Hugging Face's class" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_thresholds_of_the_labels_are_left_to_predict(tmp_path, capsys):
    task = {"kind": "multi_label", "label": "topics", "labels": ["film", "plot", "cast"], "thresholds": [0.5, 0.25, 1]}
    as_run(fine_tuning.recipe(tmp_path, task=task, model={"layers": 1}))
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    assert "not in Hugging Face's class: thresholds of the labels, 0.25 to 1, as in pred" in capsys.readouterr().out
    keys = json.loads((tmp_path / "out" / "config.json").read_text())
    assert keys["problem_type"] == "multi_label_classification" and [*keys["label2id"]] == task["labels"]


def test_adapters_in_the_layers_are_in_no_class_of_theirs(tmp_path, capsys):
    config = families.config(
        "bert", run_dir=str(tmp_path / "run"), model={"layers": 1, "adapter": {"kind": "bottleneck", "dim": 4}}
    )
    as_run(config)
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 2
    said = "model.adapter: Hugging Face's classes do not support adapters in their layers"
    assert said in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_table_and_its_difference_are_exported_as_their_sum():
    """ELECTRA's tables of which the discriminator learns a difference alone."""
    objective = {"kind": "replaced_token", "generator": {"mlp_dim": 16}, "sharing": "disentangled"}
    config = families.config("bert", model={"kind": "electra", "layers": 1}, objective=objective)
    network, summands, left_out = convert.exported(config.objective.network(config.model))
    paths = {path for paths in summands.values() for path in paths}
    saved = {path: np.full(2, i, np.float32) for i, path in enumerate(sorted(paths))}
    sums = convert._Sums(saved, summands)
    assert left_out == ["generator"] and set(network.heads) == {"replaced_token"}
    assert len(sums) == len(summands) == len(dict(sums)) and any(len(of_path) == 2 for of_path in summands.values())
    for path, x in sums.items():
        difference = f"heads/generator/{path}"
        np.testing.assert_array_equal(x, saved[path] + (saved[difference] if difference in paths else 0))


def test_a_task_is_named_where_each_has_a_head_of_its_own(imported_bert, tmp_path, capsys):
    """Not of a run without names, nor of one that answers all tasks with text."""
    tasks = [{"kind": "classification", "name": name} for name in ("mood", "style")]
    objective = {"kind": "text_to_text"}
    config = fine_tuning.mixture(
        tmp_path, of="t5", tasks=tasks, counts=(4, 4), model={"layers": 1}, objective=objective
    )
    assert not config.objective.heads(config.model)
    params = as_run(config)
    out = str(tmp_path / "out")
    for run, said in (
        (imported_bert, "--task mood: the run has no tasks with names; leave it out"),
        (tmp_path / "run", "--task mood: one model answers all tasks of the run; leave it out"),
    ):
        assert main(["export", str(run), out, "--task", "mood"]) == 2
        assert said in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert main(["export", str(tmp_path / "run"), out]) == 0
    tensors = files.Tensors(tmp_path / "out")
    np.testing.assert_array_equal(tensors["shared.weight"], params["model/token_embed/table"][:64])


@pytest.mark.slow
@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_run_is_exported_without_the_padding_of_its_vocabulary(family, texts, tmp_path):
    params = run_of(tmp_path / "run", family, texts)
    convert.export(tmp_path / "run", tmp_path / "out", report=lambda line: None)
    _, loaded = hf.load(tmp_path / "out")
    for (path, ours), (_, theirs) in zip(*map(jax.tree_util.tree_leaves_with_path, (params, loaded))):
        rows = tuple(slice(300) if size == 384 else slice(None) for size in ours.shape)
        np.testing.assert_array_equal(np.asarray(ours)[rows], theirs[rows], err_msg=str(path))


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("family", families.FAMILIES)
def test_transformers_goes_on_from_an_exported_run(family, texts, tmp_path, capsys):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    run_of(tmp_path / "run", family, texts)
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--verify"]) == 0
    assert "outputs equal Hugging Face's within rounding" in capsys.readouterr().out
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ours = tokenizers.load(tmp_path / "run" / "tokenizer")
    assert [tokenizer.encode(text, add_special_tokens=False) for text in texts[:3]] == ours.encode_batch(texts[:3])
    architecture = json.loads((tmp_path / "out" / "config.json").read_text())["architectures"][0]
    model = getattr(transformers, architecture).from_pretrained(tmp_path / "out").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.tensor([ours.encode(texts[0])])
    losses = []
    for _ in range(3):
        if family == "bert":
            loss = -model(input_ids=ids).prediction_logits[0, 0].log_softmax(-1)[7]
        else:
            loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[2] < losses[0]
