"""Answers of text to text: labels by likelihood equal brute force, generated text equals `jaxpt.load`'s."""

import dataclasses
import functools
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxpt.config import DistributedConfig
from jaxpt.decode import batching
from jaxpt.decode.engine import Engine, Prompt
from jaxpt.decode.options import Options
from jaxpt.decode.programs import Place
from jaxpt.errors import UserError
from jaxpt.evals import generation, predictors
from jaxpt.inference.loaded import Loaded
from jaxpt.inference.opening import Opened
from jaxpt.objectives.text_to_text import Decoding
from jaxpt.parallel import distributed, processes
from jaxpt.train import state
from tests import compilations, families, grids
from tests.processes import run
from tests.text_pairs import LABELS, TEXTS, Words, config, ids, records, rows

WORDS = Words()
SENTENCES = ["it is good", "the cat ran", "one two three four five six", "bad", "very very bad dog"]
LABELLED = rows(*({"text": text} for text in SENTENCES))
SPOKEN = rows(*({"mr": text} for text in SENTENCES))


@functools.cache
def made(model, task="labels", devices=1, mesh=(), **objective):
    """(setup, parameters that answer differently, predictor)."""
    of_task = {"labels": LABELS, "texts": TEXTS}[task]
    found = config(model, of_task, **({"decide_by": "likelihood"} if task == "labels" else {}), **objective)
    sizes = dict(mesh) or {"data": devices}
    found = found.model_copy(update={"mesh": found.mesh.model_copy(update=sizes)})
    setup = state.setup(found, None if mesh else jax.devices()[:devices])
    return setup, families.begin(setup, spread=0.3).params, predictors.build(setup, WORDS)


@functools.cache
def forward(network):
    """Log-probabilities after each token that the decoder reads; compiled once for each length."""

    def run(params, read, inputs):
        bound = network.bind(params)
        encoded = () if inputs is None else (bound.encode(inputs).hidden,)
        states = bound.lm_states(bound.decode(read, *encoded).hidden)
        return jax.nn.log_softmax(bound.output_projection()(states, padded=False))[0]

    return jax.jit(run)


def brute_force(setup, params, record, word):
    """Log-probabilities of a label word's tokens: one forward pass; no token sees the zeros after the last one."""
    target = ids(WORDS, f"{word} </s>")
    if setup.config.model.family == "decoder":
        read, inputs = [*record["tokens"], *target[:-1]], None
    else:
        read, inputs = [*{"t5": [0], "bart": [1, 2]}[setup.config.model.kind], *target[:-1]], record["inputs"][None]
    padded = np.pad(np.array([read]), ((0, 0), (0, 16 - len(read))))
    of_places = np.asarray(forward(setup.network)(params, padded, inputs))[len(read) - len(target) : len(read)]
    return of_places[np.arange(len(target)), target]


@pytest.mark.slow
@pytest.mark.parametrize("model", grids.cases(["t5", "bart", "gpt2"], "bart", "gpt2"))
def test_the_likelihood_of_a_label_is_that_of_its_words(model):
    setup, params, predictor = made(model)
    of_rows = records(setup.config, WORDS, LABELLED, has_targets=False)
    found = predictor(params, of_rows)
    words = LABELS["names"]
    for record, scores in zip(of_rows[1:4], found[1:4], strict=True):  # of every length
        wanted = [brute_force(setup, params, record, word).sum() for word in words]
        np.testing.assert_allclose(scores, wanted, rtol=1e-5)
    answer = setup.config.objective.answer([found[0]], LABELLED[0].row, "x")
    p = np.exp(found[0] - found[0].max())
    np.testing.assert_allclose(list(answer["probabilities"].values()), p / p.sum(), rtol=1e-6)
    assert answer["label"] == words[setup.config.objective.decide([found[0]], LABELLED[0].row, "x")]
    assert max(answer["probabilities"], key=answer["probabilities"].get) == answer["label"]


def test_normalized_likelihoods_are_means_and_nothing_compiles_twice():
    setup, params, predictor = made("gpt2")
    of_rows = records(setup.config, WORDS, LABELLED, has_targets=False)
    half = jax.tree.map(lambda x: np.asarray(x) * np.float32(0.5), params)
    half = jax.device_put(half, setup.shardings.params)
    predictor.compile(of_rows)
    with compilations.seen() as programs:
        found, others = predictor(params, of_rows), predictor(half, of_rows)
    assert not programs
    assert not np.allclose(found, others)
    normalized = made("gpt2", normalize=True)[2](params, of_rows)
    np.testing.assert_allclose(normalized, np.array(found) / [2, 2, 3], rtol=1e-6)


def test_losses_of_targets_and_of_labels():
    """The mean of −log p of a target's tokens; of labels by likelihood −log of the label's share."""
    spoken = rows(*({"mr": text, "ref": "the dog" if n % 2 else "it"} for n, text in enumerate(SENTENCES)))
    setup, params, predictor = made("gpt2", "texts")
    of_rows = records(setup.config, WORDS, spoken)
    found = predictor.losses(params, of_rows, [[""]] * len(spoken), [["it"]] * len(spoken))
    for n, (record, loss) in enumerate(zip(of_rows, found, strict=True)):
        prompt = {"tokens": record["tokens"][: record["prefix"]]}
        wanted = -brute_force(setup, params, prompt, "the dog" if n % 2 else "it").mean()
        assert loss == pytest.approx(wanted, rel=1e-5)
    likely = made("gpt2")[2]
    scores = np.array([-2.0, -1.0, -3.0])
    wanted = np.log(np.exp(scores).sum()) - scores
    assert likely.losses(params, [], [[scores], [scores]], [1, 2]) == pytest.approx(wanted[1:])


@pytest.mark.slow
@pytest.mark.parametrize("model", grids.cases(["t5", "bart"], "t5"))
def test_losses_of_targets_of_encoder_decoders(model):
    spoken = rows(*({"mr": text, "ref": "the dog"} for text in SENTENCES))
    setup, params, predictor = made(model, "texts")
    of_rows = records(setup.config, WORDS, spoken)
    found = predictor.losses(params, of_rows, [[""]] * len(spoken), [["the dog"]] * len(spoken))
    wanted = [-brute_force(setup, params, record, "the dog").mean() for record in of_rows]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_the_first_of_equally_likely_labels_is_chosen():
    objective = config("t5", LABELS, decide_by="likelihood").objective
    scores = np.array([-2.0, -1.0, -1.0])
    assert objective.decide([scores], LABELLED[0].row, "x") == 1
    assert objective.answer([scores], LABELLED[0].row, "x")["label"] == "good"


def test_rows_do_not_compete_for_the_places_of_experts():
    of_task = config("t5", LABELS, kind="classification")
    limits = {"experts": 4, "capacity_factor": 0.5, "min_capacity": 1, "group_rows": 2}
    setup = state.setup(
        of_task.model_copy(update={"model": of_task.model.model_copy(update=limits)}), jax.devices()[:1]
    )
    params, predictor = families.begin(setup, spread=0.3).params, predictors.build(setup, WORDS)
    of_rows = records(setup.config, WORDS, LABELLED, has_targets=False)
    alone = [predictor(params, [record])[0] for record in of_rows]
    np.testing.assert_allclose(predictor(params, of_rows), alone, atol=1e-5)


@pytest.mark.slow
def test_neither_batches_nor_devices_change_a_likelihood(monkeypatch):
    setup, params, predictor = made("t5")
    of_rows = records(setup.config, WORDS, LABELLED, has_targets=False)
    wanted = predictor(params, of_rows)
    monkeypatch.setitem(batching.MAX_TOKENS, "cpu", 256)
    setup, sharded, predictor = made("t5", devices=2)
    np.testing.assert_allclose(predictor(sharded, of_rows), wanted, rtol=1e-5)


def test_a_label_that_is_longer_than_a_target_is_refused():
    with pytest.raises(UserError, match=r"objective.targets_length: 2: label word 'very good' has 3 tokens"):
        made("t5", targets_length=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model, beams", grids.cases([("t5", 1), ("gpt2", 1), ("t5", 3), ("bart", 1)], ("gpt2", 1), ("t5", 3))
)
def test_generated_text_is_that_of_a_loaded_model(model, beams):
    setup, params, _ = made(model, "texts")
    task = setup.config.objective.model_copy(update={"decoding": Decoding(beams=beams)})
    setup = dataclasses.replace(setup, config=setup.config.model_copy(update={"objective": task}))
    predictor = predictors.build(setup, WORDS)
    of_rows = records(setup.config, WORDS, SPOKEN, has_targets=False)
    predictor.compile(of_rows)
    found = predictor(params, of_rows)
    assert len(set(found)) > 1
    opened = Opened(Path("runs/x"), setup.network, params, setup.config.objective, WORDS, None, (1,), {}, None)
    inputs = [setup.config.task.input_text(row.row, "x") for row in SPOKEN]
    loaded = Loaded(opened).generate(inputs, max_new_tokens=6, beams=beams)
    assert found == [WORDS.decode(samples[0].tokens) for samples in loaded]
    assert predictor(params, of_rows) == found, "parameters come and go"
    assert setup.config.objective.answer([found[0]], SPOKEN[0].row, "x") == {"text": found[0]}


def test_generation_compiles_before_there_are_parameters():
    setup, params, predictor = made("t5", "texts")
    of_rows = records(setup.config, WORDS, SPOKEN, has_targets=False)
    predictor.compile(of_rows)
    with compilations.seen() as programs:
        assert len(predictor(params, of_rows)) == len(SPOKEN)
    assert not [name for name in programs if "dynamic_slice" not in name]  # which cut layers from the parameters


@pytest.mark.slow
def test_predictions_end_when_they_are_told_to(monkeypatch):
    setup, params, predictor = made("t5", "texts")
    of_rows = records(setup.config, WORDS, SPOKEN, has_targets=False)
    monkeypatch.setattr(generation, "ASK", 2)
    asked = []
    assert predictor(params, of_rows, lambda: asked.append(1) or len(asked) == 2) is None
    assert len(asked) == 2
    setup, params, predictor = made("t5")
    assert predictor(params, records(setup.config, WORDS, LABELLED, has_targets=False), lambda: True) is None


def process(number, folder):
    """Both predictions on a mesh over all processes."""
    processes.start(DistributedConfig())
    found = {}
    for name, of_task in (("labels", LABELLED), ("texts", SPOKEN)):
        setup, params, predictor = made("t5", name, mesh=(("data", 2), ("fsdp", 2)))
        any_process = distributed.AnyProcess(setup.mesh)
        of_rows = records(setup.config, WORDS, of_task, has_targets=False)
        predictor.compile(of_rows)
        found[name] = predictor(params, of_rows, lambda: any_process(False))  # noqa: B023
    np.savez(folder / f"{number}.npz", **found)


@pytest.mark.slow
def test_processes_change_no_prediction(tmp_path):
    codes, logs = run(process, 2, 2, tmp_path / "run", tmp_path)
    assert codes == [0, 0], logs
    (first, second) = (np.load(tmp_path / f"{number}.npz") for number in range(2))
    for name, of_task in (("labels", LABELLED), ("texts", SPOKEN)):
        setup, params, predictor = made("t5", name)
        wanted = predictor(params, records(setup.config, WORDS, of_task, has_targets=False))
        np.testing.assert_array_equal(first[name], second[name])
        if name == "labels":
            np.testing.assert_allclose(first[name], wanted, rtol=1e-5)
        else:
            assert first[name].tolist() == wanted


def test_a_prefix_lm_reads_a_prompt_in_both_directions():
    """As `jaxpt.load` generates."""
    found = families.config("gpt2", objective={"kind": "prefix_lm"})
    setup = state.setup(found, jax.devices()[:1])
    params = families.begin(setup, spread=0.3).params
    prompts, options = [Prompt([5, 6, 7, 8]), Prompt([9, 10, 11])], Options(max_new_tokens=6, eos=())
    answers = {}
    for prefix in (True, False):
        engine = Engine(setup.network, params, Place(setup.mesh), prefix=prefix)
        answers[prefix] = {one.index: one.tokens for one in engine.generate(prompts, options)}
    assert answers[True] != answers[False]
    assert generation.Generation(setup)(params, prompts, options) == [answers[True][0], answers[True][1]]
