"""Fine-tuning that starts from a pretrained model: which parameters of its heads are taken."""

import json
import re

import jax
import numpy as np
import optax
import pytest
from flax import traverse_util

from jaxpt import config as configs
from jaxpt import hf
from jaxpt.config import InitConfig, build
from jaxpt.data.calls import Vocabulary
from jaxpt.data.tokenizers import words
from jaxpt.errors import UserError
from jaxpt.hf import directory, files, origin, reader, verify
from jaxpt.inference import static_vectors
from jaxpt.models import parts
from jaxpt.models.heads import classes, masked_lm
from jaxpt.models.network import Network
from jaxpt.models.stored import stored_params
from jaxpt.objectives.rows import TOKENS
from jaxpt.train import initial, optimizers, state, trainable, vocabularies, weights
from tests import families
from tests.hf.parity import randomise
from tests.hf.test_directory import fresh
from tests.hf.test_tasks_parity import CASES
from tests.models.helpers import EVERY


def started(path, **train):
    """(setup, state, what was said) of a classification that starts from a directory."""
    model = directory.open_directory(path, partial=True).network.config.model_dump(mode="json")
    config = build(
        {
            "run_dir": "runs/x",
            "task": {"kind": "classification", "labels": ["0", "1", "2"]},
            "model": {**model, "dtype": "float32"},
            "data": {"tokenizer": {"kind": "wordpiece"}, "length": 16},
            "train": train,
        }
    )
    said: list[str] = []
    setup = state.setup(config, jax.devices()[:1])
    return setup, initial.start(setup, InitConfig(path=str(path)), said.append), said


def test_modernberts_pooler_is_a_layer_of_its_masked_lm_head(tmp_path):
    config = EVERY["modernbert"](layers=1)
    network, params = fresh(Network(config.build(), masked_lm.declare(config)))
    hf.save(tmp_path, network, params)
    _, begun, said = started(tmp_path, trainable=["model"])
    jax.tree.map(np.testing.assert_array_equal, params["model"], begun.params["model"])
    head = params["heads"]["masked_lm"]
    taken = {name: head[name] for name in ("dense", "norm")}
    jax.tree.map(np.testing.assert_array_equal, taken, begun.params["heads"]["pooler"])
    assert said[1:] == [
        "  new: heads/classes/dense/bias, heads/classes/dense/kernel",
        "  not used: heads/masked_lm/bias",
        "  not trained, though new (train.trainable): heads/classes/dense/bias, heads/classes/dense/kernel",
    ]


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("name", ["modernbert", "modernbert, mean, biases"])
def test_pooled_states_are_those_of_transformers(name, tmp_path):
    """What its class takes from a masked-LM directory; the projection to the labels is new on both sides."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    _, model_type, options, _ = CASES[name]
    pretrained = transformers.ModernBertForMaskedLM(transformers.CONFIG_MAPPING[model_type](**options))
    randomise(pretrained, 0).save_pretrained(tmp_path)
    theirs = transformers.ModernBertForSequenceClassification.from_pretrained(tmp_path, num_labels=3).eval()
    setup, begun, _ = started(tmp_path)
    inputs = verify.task_batch(setup.config.model)
    ids, mask = (torch.from_numpy(inputs[key]).long() for key in ("tokens", "segments"))
    with torch.no_grad():
        states = theirs.model(ids, attention_mask=mask).last_hidden_state
        weights = mask[..., None] / mask.sum(1)[:, None, None]
        wanted = theirs.head(states[:, 0] if "mean" not in name else (states * weights).sum(1)).numpy()
    bound = setup.network.bind(begun.params)
    ours = verify.task_states(bound, inputs, "encoder")
    mean = (ours * inputs["segments"][..., None]).sum(1) / inputs["segments"].sum(1, keepdims=True)
    found = np.asarray(bound.heads["pooler"](ours[:, 0] if "mean" not in name else mean))
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())
    assert classes.name_of(setup.network.heads) == "classes"


QUERY = "model/encoder/segment_0/block_0/attention/query/kernel"


@pytest.mark.parametrize("trainable", [None, ["model/encoder[2:]", "heads"]], ids=["whole", "in parts"])
def test_of_a_stack_the_layers_that_a_directory_has_are_taken(trainable, tmp_path):
    """The others stay as they were drawn, and are named; without `partial` they are missed."""
    model = {**families.MODELS["bert"], "layers": 3}
    config = families.config("bert", model=model, train={"trainable": trainable})
    network, params = fresh(config.model)
    hf.save(tmp_path, network, params)
    known = dict(files.Tensors(tmp_path))
    del known["bert.encoder.layer.1.attention.self.query.weight"]
    files.write(tmp_path, {name: (x.shape, x.dtype) for name, x in known.items()}, known.items())
    setup, lines = state.setup(config, jax.devices()[:1]), []
    flat = traverse_util.flatten_dict(jax.device_get(setup.init().params), sep="/")
    for path, x in traverse_util.flatten_dict(params, sep="/").items():
        for piece, at in parts.places(path, setup.layout.parts):
            is_gone = np.zeros(x.shape, bool)
            is_gone[1:2] = path == QUERY
            flat[piece] = np.where(is_gone[at], flat[piece], x[at])
    begun = initial.start(setup, InitConfig(path=str(tmp_path), partial=True), lines.append)
    jax.tree.map(np.testing.assert_array_equal, traverse_util.flatten_dict(begun.params, sep="/"), flat)
    assert lines[1] == f"  fitted: {QUERY}" and lines[2].startswith("  new: ") and lines[2].endswith(f"{QUERY}[1]")
    if trainable is None:
        others: list[str] = []
        initial.start(setup, InitConfig(path=str(tmp_path), partial=True, layers=(2, 0, 2)), others.append)
        assert not any(QUERY in line for line in others), "each of these layers is there"
        with pytest.raises(UserError, match=rf"lacks or has in another shape .*{re.escape(QUERY)}\[1\]"):
            initial.start(setup, InitConfig(path=str(tmp_path)), lines.append)


OBJECTIVES = [
    ("t5", {"kind": "span_corruption"}, (0,)), ("t5", {"kind": "ul2"}, (0,)), ("t5", {"kind": "mass"}, (1,)),
    ("t5", {"kind": "seq2seq"}, (0,)), ("t5", {"kind": "salient_spans"}, (0,)), ("t5", {"kind": "bart"}, (1,)),
    ("bert", {"kind": "masked_lm"}, None), ("gpt2", {"kind": "causal_lm"}, None),
]  # fmt: skip


@pytest.mark.parametrize(("family", "objective", "start"), OBJECTIVES)
def test_files_of_the_directory_that_a_run_starts_from(family, objective, start, tmp_path):
    """With the EOS that training writes, and the decoder's start of its objective."""
    (tmp_path / "theirs").mkdir()
    keys = {"eos_token_id": 7, "decoder_start_token_id": 9, "forced_bos_token_id": 8}
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(keys))
    source = {"path": str(tmp_path / "theirs")}
    vocabulary = Vocabulary(size=150, pad=0, eos=1, unk=2, bos=None, cls=3, sep=4, mask=5, sentinels=20)
    for path, same in ((source["path"], True), (str(tmp_path / "other"), False)):
        run = tmp_path / f"run{same}"
        config = families.config(
            family, run_dir=str(run), init_from=source, objective=objective,
            data={"tokenizer": {"kind": families.TOKENIZERS[family], "path": path}},
        )  # fmt: skip
        reader.carry(config, vocabulary)
        found = origin.read(run / origin.FOLDER, origin.CONFIG)
        if not same:
            assert found == {}
        elif start is None:
            assert found == keys | ({} if family == "bert" else {"eos_token_id": [1, 7]})
        else:
            assert found == {
                "eos_token_id": [1, 7], "decoder_start_token_id": start[0], "forced_bos_token_id": None,
            }  # fmt: skip


OF_ROWS = {"glove": {"kind": "glove"}, "fasttext": {"kind": "skip_gram", "subwords": {"buckets": 9}},
           "word2vec": {"kind": "cbow"}}  # fmt: skip


@pytest.mark.parametrize("name", OF_ROWS)
def test_a_task_starts_from_the_word_vectors_that_a_run_gives_away(tmp_path, name):
    model = {"kind": "word_vectors", "vocab_size": 6, "embed_dim": 4}
    data = {"tokenizer": {"kind": "words", "path": str(tmp_path / "run" / "tokenizer")}, "length": 8}
    source = build({"run_dir": str(tmp_path / "run"), "objective": OF_ROWS[name], "model": model, "data": data})
    network = source.objective.network(source.model)
    shapes, rng = stored_params(network), np.random.default_rng(0)
    tables = {path: rng.normal(size=place.shape).astype(np.float32) for path, place in shapes.items()}
    tokenizer = words.of_words(["the", "cat", "sat"], lowercase=False)
    tokenizer.save(tmp_path / "run" / "tokenizer")
    (tmp_path / "run" / "config.yaml").write_text(configs.with_checksum(configs.to_yaml(source)))
    pieces = ((path, None, x) for path, x in tables.items())
    weights.write(tmp_path / "run", network, dict.fromkeys(tables, np.dtype(np.float32)), pieces)
    task = {"kind": "classification", "labels": ["0", "1"]}
    setup = state.setup(
        build({"run_dir": "runs/x", "task": task, "model": model | {"dtype": "float32"}, "data": data}),
        jax.devices()[:1],
    )
    said: list[str] = []
    begun = initial.start(setup, InitConfig(path=str(tmp_path / "run")), said.append)
    given, table = static_vectors.of_run(tmp_path / "run"), begun.params["model"]["token_embed"]["table"]
    np.testing.assert_array_equal(table[3:6], given.vectors_VxD)
    np.testing.assert_array_equal(table[:3], tables[TOKENS][:3])
    stored = traverse_util.unflatten_dict(tables, sep="/")
    for params in (stored, jax.tree.map(jax.numpy.asarray, stored)):  # as a run is loaded, and as evaluators have it
        embedding = vocabularies.with_word_vectors(source, tokenizer, params)
        np.testing.assert_array_equal(embedding["model"]["token_embed"]["table"], table)
    is_said = any("the word vectors that `jaxpt export" in line for line in said)
    assert is_said == (name != "word2vec") == (not np.array_equal(table, tables[TOKENS]))


@pytest.mark.parametrize(
    "sections",
    [{}, {"optimizer": {"decay_multipliers": {"model/decoder[1:]": 0.5}}}, {"train": {"trainable": ["model/decoder"]}}],
    ids=["all", "groups", "some"],
)
def test_an_optimizer_that_copies_the_parameters_has_those_that_were_taken(monkeypatch, sections):
    copying = optax.GradientTransformation(lambda params: params, lambda updates, state, params=None: (updates, state))
    monkeypatch.setattr(optimizers.AdamW, "build", lambda self, schedule, logical_axes: copying)
    setup = state.setup(families.config("gpt2", **sections), jax.devices()[:1])
    params = families.begin(setup, seed=1).params
    begun = initial.from_params(setup, setup.init(), params)
    trained, _ = trainable.partition(jax.device_get(params), setup.trained)
    copies = jax.device_get(setup.optimizer.init(trained))
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(begun.opt_state), copies)
    assert jax.tree.map(lambda x: x.sharding, begun.opt_state) == setup.shardings.opt_state
    jax.block_until_ready(jax.jit(lambda x: jax.tree.map(lambda y: y + 1, x), donate_argnums=0)(begun))


@pytest.mark.parametrize("kind", ["adamw", "adafactor", "lamb", "muon"])
def test_the_state_of_an_optimizer_that_starts_from_zeros_stays(kind):
    setup = state.setup(families.config("gpt2", optimizer={"kind": kind}), jax.devices()[:1])
    fresh = setup.init()
    assert initial.from_params(setup, fresh, families.begin(setup, seed=1).params).opt_state is fresh.opt_state
