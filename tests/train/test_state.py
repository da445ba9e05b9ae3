"""The setup of each phase of a run: its objective's settings count, and all phases have the same parameters."""

import jax
import pytest

from jaxpt import config as configs
from jaxpt.errors import UserError
from jaxpt.train import state
from tests import families

ELECTRA = {"kind": "replaced_token", "generator": {"embed_dim": 16}, "sharing": "disentangled"}


def in_phases(family, setting, **sections):
    """(setup of the run, setup of its second phase)"""
    config = families.config(family, train={"phases": [{"steps": 5}, {"set": setting}]}, **sections)
    setup = state.setup(config, jax.devices()[:1])
    return setup, setup.for_phase(configs.at_phase(config, 1), 1)


def test_a_phase_may_change_what_its_heads_do():
    task = {"kind": "classification", "labels": ["a", "b"]}
    first, second = in_phases("bert", {"objective.dropout": 0.5}, task=task, objective={"kind": "classification"})
    assert first.network.heads["classes"].module.dropout == 0.0
    assert second.network.heads["classes"].module.dropout == 0.5
    assert second.shapes == first.shapes and second.network.model == first.network.model


@pytest.mark.parametrize("setting", [{"data.length": 8}, {"objective.mask_rate": 0.2}])
def test_what_is_of_no_module_leaves_the_network(setting):
    first, second = in_phases("bert", setting)
    assert second.network is first.network


def test_heads_that_a_phase_does_not_use_stay():
    first, second = in_phases("bert", {"objective.next_sentence": False})
    assert "sentence_pair" not in second.config.objective.heads(second.config.model)
    assert second.network is first.network and "sentence_pair" in second.network.heads


@pytest.mark.parametrize(
    ("objective", "setting", "words"),
    [
        ({"kind": "span_boundary"}, {"objective.max_span": 7}, "objective.max_span: 7 .*position_embed"),
        (ELECTRA, {"objective.sees_first": True}, "objective.sees_first: True .*heads/replaced_token/norm"),
        (ELECTRA, {"objective.sharing": "shared"}, "objective.sharing: shared .*heads/generator/model/"),
    ],
)
def test_a_phase_with_other_parameters_is_refused(objective, setting, words):
    with pytest.raises(UserError, match=rf"train\.phases: all phases have the same parameters; {words}"):
        in_phases("bert", setting, objective=objective)
