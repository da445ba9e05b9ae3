"""The metrics of a registered SeqIO Task: SeqIO's Evaluator with our generation and our log-likelihoods."""

import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxpt.data._tf import seqio
from jaxpt.data.calls import Vocabulary
from jaxpt.decode.engine import Engine
from jaxpt.errors import UserError
from jaxpt.evals.seqio_task import SeqioTask
from jaxpt.inference.loaded import Loaded
from jaxpt.inference.opening import Opened
from jaxpt.train import state
from tests import families

sys.path.insert(0, str(Path(__file__).parents[1] / "data/sources"))
SEEN = {}


def answer(text, example=None, is_target=False):
    """Targets are postprocessed as predictions are."""
    return ("target" if is_target else "prediction", text)


def lengths(targets, predictions):
    SEEN["targets"], SEEN["predictions"] = targets, predictions
    return {"longer": np.mean([len(p[1]) > len(t[1]) for t, p in zip(targets, predictions)]), "name": "no number"}


def likelihood(targets, scores):
    SEEN["scores"] = scores
    return {"log_likelihood": np.float32(np.mean(scores))}


def with_aux(targets, predictions, aux_values):
    return {}


@pytest.fixture(scope="module")
def tasks():
    import t5_style_tasks as style

    plain = [style.ask, seqio.preprocessors.tokenize, seqio.preprocessors.append_eos]
    metrics = {"scored": [lengths, likelihood], "unscored": [], "with_aux": [with_aux]}
    for name, of_task in metrics.items():
        seqio.TaskRegistry.add(
            f"style_{name}", source=style.source, preprocessors=plain, output_features=style.FEATURES,
            postprocess_fn=answer, metric_fns=of_task,
        )  # fmt: skip
    yield style
    for name in metrics:
        seqio.TaskRegistry.remove(f"style_{name}")


def config(task, **objective):
    data = {"source": "task", "task": f"style_{task}", "modules": ["t5_style_tasks"], "length": 20, "batch_size": 4}
    given = {"kind": "seq2seq", "targets_length": 8, **objective}
    return families.config("t5", model={"vocab_size": 1200, "layers": 1}, objective=given, data=data)


def prepared(config, style, **keys):
    """(setup, parameters, what the evaluator evaluates with)."""
    setup = state.setup(config, jax.devices()[:1])
    vocabulary = Vocabulary(style.VOCABULARY.vocab_size, pad=0, eos=1, sentinels=20)
    rng = np.random.default_rng(1)
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: (path[-1].key == "scale") + 0.4 * rng.standard_normal(x.shape, np.float32),
        setup.shapes.params,
    )
    return setup, params, SeqioTask(**keys).prepare(setup, SimpleNamespace(vocabulary=vocabulary))


def brute_force(model, inputs, targets):
    """Σ log p(target), without padding."""

    @jax.jit
    def run(params, inputs, read):
        bound = model.network.bind(params)
        hidden = bound.decode(read, bound.encode(inputs).hidden).hidden
        return jax.nn.log_softmax(bound.output_projection()(bound.lm_states(hidden), padded=False)[0])

    log_probs = np.asarray(run(model.params, np.array([inputs]), np.array([[0, *targets[:-1]]])))
    return log_probs[np.arange(len(targets)), targets].sum()


@pytest.mark.slow
def test_a_tasks_metrics_see_generated_text_and_likelihoods(tasks):
    setup, params, evaluate = prepared(config("scored"), tasks, examples=6)
    found = evaluate(params, {}, lambda: False).metrics
    task = seqio.get_mixture_or_task("style_scored")
    examples = list(task.get_dataset({"inputs": 20, "targets": 8}, "validation", shuffle=False).take(6))
    assert SEEN["targets"] == [("target", ex["targets_pretokenized"].numpy().decode()) for ex in examples]

    inputs = [ex["inputs"].numpy().tolist() for ex in examples]
    tokenizer = SimpleNamespace(
        encode=lambda text, special=False: inputs[int(text)], vocabulary=Vocabulary(1120, pad=0, eos=1, sentinels=20)
    )
    opened = Opened(Path("x"), setup.network, params, setup.config.objective, tokenizer, None, (1,), {}, None)
    model = Loaded(opened)
    prompts = [model.prompt_ids(str(n))._replace(encoder=ids) for n, ids in enumerate(inputs)]  # the Task adds EOS
    answers = Engine(setup.network, params).generate(prompts, model.options(max_new_tokens=8))
    ids = {one.index: one.tokens for one in answers}
    wanted = [("prediction", tasks.VOCABULARY.decode(ids[n])) for n in range(6)]
    assert SEEN["predictions"] == wanted
    targets = [ex["targets"].numpy() for ex in examples]
    np.testing.assert_allclose(SEEN["scores"], [brute_force(model, *pair) for pair in zip(inputs, targets)], rtol=1e-5)
    assert found == {
        "longer": np.mean([len(p[1]) > len(t[1]) for t, p in zip(SEEN["targets"], wanted)]),
        "log_likelihood": pytest.approx(np.mean(SEEN["scores"]), rel=1e-6),
    }, "what is no number is left out"
    assert evaluate(params, {}, lambda: True) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "task, keys, said",
    [
        ("scored", {"split": "test"}, "has no test split; it has train, validation"),
        ("train_only", {}, "has no validation split; it has train"),
        ("unscored", {}, "style_unscored has no metric_fns; remove the evaluator"),
        ("with_aux", {}, "has a metric on prediction_with_aux"),
    ],
)
def test_what_cannot_be_scored_is_refused(tasks, task, keys, said):
    with pytest.raises(UserError, match=said):
        prepared(config(task), tasks, **keys)


def test_other_objectives_are_refused(tasks):
    with pytest.raises(UserError, match=r"needs data.source: task and objective.kind: seq2seq"):
        prepared(families.config("t5"), tasks)
