"""Two processes score what one scores. Real processes on loopback."""

import json

import jax
import numpy as np
import pytest

from jaxpt.config import DistributedConfig, MeshConfig
from jaxpt.decode.likelihood import loglikelihood
from jaxpt.decode.programs import Place
from jaxpt.parallel import mesh as meshes
from jaxpt.parallel import processes
from tests.decode.helpers import network, texts
from tests.processes import run

NAMES = ("gpt2", "t5", "bert")


def scored(name, place):
    """Log-probabilities of continuations, three of them of one context."""
    contexts, continuations = texts(9, 5, 12, seed=1), texts(2, 1, 2, 3, 1, seed=2)
    made, params, *rest = network(name, layers=1)
    with place.use():
        params = jax.tree.map(lambda x: jax.device_put(np.asarray(x), place.everywhere), params)
        found = loglikelihood(made, params, *rest, [*contexts, contexts[2], contexts[2]], continuations)
    return [one.log_probs.tolist() for one in found.items]


def process(number, folder):
    processes.start(DistributedConfig())
    place = Place(meshes.make(MeshConfig(data=-1), jax.devices()))
    for name in NAMES:
        (folder / f"{name}-{number}.json").write_text(json.dumps(scored(name, place)))


@pytest.mark.slow
def test_two_processes_score_what_one_scores(tmp_path):
    codes, logs = run(process, 2, 2, tmp_path / "run", tmp_path)
    assert codes == [0, 0], logs
    for name in NAMES:
        first, second = (json.loads((tmp_path / f"{name}-{number}.json").read_text()) for number in range(2))
        assert first == second
        for one, other in zip(first, scored(name, Place()), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
