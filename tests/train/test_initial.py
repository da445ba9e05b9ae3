"""Fine-tuning that starts from a pretrained model: which parameters of its heads are taken."""

import jax
import numpy as np
import pytest

from jaxpt import hf
from jaxpt.config import InitConfig, build
from jaxpt.heads import classes, masked_lm
from jaxpt.hf import directory, verify_tasks
from jaxpt.models.network import Network
from jaxpt.train import initial, state
from tests.hf.parity import randomise
from tests.hf.test_directory import fresh
from tests.hf.test_tasks_parity import CASES
from tests.models.helpers import EVERY


def started(path):
    """(setup, state, what was said) of a classification that starts from a directory."""
    model = directory.open_directory(path, partial=True).network.config.model_dump(mode="json")
    config = build(
        {
            "run_dir": "runs/x",
            "task": {"kind": "classification", "labels": ["0", "1", "2"]},
            "model": {**model, "dtype": "float32"},
            "data": {"tokenizer": {"kind": "wordpiece"}, "length": 16},
        }
    )
    said: list[str] = []
    setup = state.setup(config, jax.devices()[:1])
    return setup, initial.start(setup, InitConfig(path=str(path)), said.append), said


def test_modernberts_pooler_is_a_layer_of_its_masked_lm_head(tmp_path):
    config = EVERY["modernbert"](layers=1)
    network, params = fresh(Network(config.build(), masked_lm.declare(config)))
    hf.save(tmp_path, network, params)
    _, begun, said = started(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, params["model"], begun.params["model"])
    head = params["heads"]["masked_lm"]
    taken = {name: head[name] for name in ("dense", "norm")}
    jax.tree.map(np.testing.assert_array_equal, taken, begun.params["heads"]["pooler"])
    assert said[1:] == [
        "  new: heads/classes/dense/bias, heads/classes/dense/kernel",
        "  not used: heads/masked_lm/bias",
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
    inputs = verify_tasks.batch(setup.config.model)
    ids, mask = (torch.from_numpy(inputs[key]).long() for key in ("tokens", "segments"))
    with torch.no_grad():
        states = theirs.model(ids, attention_mask=mask).last_hidden_state
        weights = mask[..., None] / mask.sum(1)[:, None, None]
        wanted = theirs.head(states[:, 0] if "mean" not in name else (states * weights).sum(1)).numpy()
    bound = setup.network.bind(begun.params)
    ours = verify_tasks.states(bound, inputs, "encoder")
    mean = (ours * inputs["segments"][..., None]).sum(1) / inputs["segments"].sum(1, keepdims=True)
    found = np.asarray(bound.heads["pooler"](ours[:, 0] if "mean" not in name else mean))
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())
    assert classes.name_of(setup.network.heads) == "classes"
