"""Learning rates of layers: the published rules, and that a run's update has the rates that it shows."""

import re

import jax
import numpy as np
import pytest

from jaxpt.models.network import Network
from jaxpt.train import patterns, state, step, trainable
from tests import families
from tests.models.helpers import EVERY
from tests.train.test_trainable import flat

ELECTRA = {  # google-research/electra, `_get_layer_lrs(1e-4, 0.8, 12)`
    "heads": 1e-4,
    "embeddings": 4.398046511104006e-06,
    0: 5.4975581388800064e-06, 1: 6.871947673600008e-06, 2: 8.58993459200001e-06, 3: 1.0737418240000012e-05,
    4: 1.342177280000001e-05, 5: 1.6777216000000013e-05, 6: 2.0971520000000013e-05, 7: 2.6214400000000015e-05,
    8: 3.276800000000001e-05, 9: 4.096000000000001e-05, 10: 5.120000000000001e-05, 11: 6.400000000000001e-05,
}  # fmt: skip
ULMFIT = {"heads": 2.6**0, 2: 2.6**-1, 1: 2.6**-2, 0: 2.6**-3, "embeddings": 2.6**-4}
EMBEDDINGS = "model/embed_norm, model/position_embed, model/token_embed, model/type_embed"


def config(layers, trainable=None, family="bert", **optimizer):
    return families.config(
        family, model={"layers": layers}, optimizer={"kind": "sgd", **optimizer}, train={"trainable": trainable}
    )


def rates(given):
    """{path: rates} of the setup, for each layer of its whole stack."""
    layout = state.setup(given).layout
    found = {}
    for path, x in layout.rates.items():
        match = re.fullmatch(r"model/encoder/segment_0/(?:layers_(\d+)-\d+/)?block_0/(.*)", path)
        first = int(match[1] or 0) if match else None
        for n, factor in enumerate(np.atleast_1d(x)):
            key = "embeddings" if "embed" in path else "heads" if match is None else first + n
            found.setdefault(key, set()).add(float(given.optimizer.learning_rate * factor))
    return found


@pytest.mark.parametrize("trainable", [None, ["!model/encoder[:5]"]], ids=["whole", "split"])
def test_electras_released_rule(trainable):
    found = rates(config(12, trainable, learning_rate=1e-4, layer_decay=0.8, layer_decay_offset=2))
    assert set(found) == set(ELECTRA)
    for key, values in found.items():
        np.testing.assert_allclose(list(values), ELECTRA[key], rtol=1e-12, err_msg=str(key))


def test_ulmfits_rule():
    found = rates(config(3, learning_rate=1.0, layer_decay=1 / 2.6, layer_decay_offset=1))
    for key, values in found.items():
        np.testing.assert_allclose(list(values), ULMFIT[key], rtol=1e-12, err_msg=str(key))


def test_elmos_characters_are_embeddings():
    """Its filters and highways were taken for a head: the highest rate."""
    decay = {"kind": "sgd", "learning_rate": 1.0, "layer_decay": 1 / 2.6, "layer_decay_offset": 1}
    rates = families.layout(families.config("elmo", optimizer=decay)).rates
    below = {"heads": 0, "model/encoder/segment_1": 1, "model/encoder/segment_0": 2, "model/words": 3}
    for path, x in rates.items():
        (power,) = (n for top, n in below.items() if path.startswith(f"{top}/"))
        np.testing.assert_allclose(x, 2.6**-power, rtol=1e-12, err_msg=path)
    assert {"model/words/characters", "model/words/highway_0/gate/kernel"} <= set(rates)


def test_the_stacks_of_debertas_encoder_count_as_one():
    """Its first layer, with the convolution beside it, and its last one are stacks of their own."""
    model = {"kind": "deberta", "layers": 5, "convolution": 3, "mask_decoder": True}
    given = families.config("bert", model=model, optimizer={"learning_rate": 1.0, "layer_decay": 0.5})
    powers = {"heads": 0, "model/last": 0, "model/encoder": [3, 2, 1], "model/first": 4, "model/convolution": 4}
    layout = families.layout(given)
    for path, x in layout.rates.items():
        power = next((n for top, n in powers.items() if path.startswith(f"{top}/")), 5)  # embeddings
        np.testing.assert_array_equal(x, np.broadcast_to(0.5 ** np.array(power), x.shape), err_msg=path)
    assert {"/".join(path.split("/")[:2]) for path in layout.rates} > {*powers} - {"heads"}
    assert trainable.problems(given, layout) == []


def test_what_projects_to_the_vocabulary_is_a_head():
    """`layer_decay_offset` counts layers below the heads; a final norm has the rate of the top layer."""
    heads = {"model/lm_head/norm/scale", "model/head/kernel", "model/vocab_bias", "model/output_bias"}
    names = {*heads, "model/final_norm/scale"}
    tree = {path: patterns.Leaf(path, ("norm",)) for path in names}
    found = trainable._rates(config(3, layer_decay=0.5, layer_decay_offset=2).optimizer, tree)
    assert found == {**dict.fromkeys(heads, 1), "model/final_norm/scale": 0.25}
    network = Network(EVERY["modernbert_decoder"](layers=2).build())
    paths = patterns.leaves(network.shapes(), network.logical_axes())
    assert {leaf.of_head for path, leaf in paths.items() if "lm_head" in path} == {True}


def test_shared_layers_have_no_rates_of_their_own():
    """A new run is refused: all applications of the layer would have the full rate."""
    given = families.config("bert", model={"kind": "albert", "layers": 3}, optimizer={"layer_decay": 0.8})
    (problem,) = trainable.problems(given, families.layout(given))
    assert problem == "optimizer.layer_decay: the layers of model/encoder share their parameters; leave it out"


def lines(given):
    return trainable.lines(given, families.layout(given))


def test_a_line_for_each_rate_the_highest_first():
    assert lines(config(3, learning_rate=1e-4, layer_decay=0.5, layer_decay_offset=2)) == [
        "learning rates at the peak:",
        "  0.0001    heads",
        "  2.5e-05   model/encoder[2]",
        "  1.25e-05  model/encoder[1]",
        "  6.25e-06  model/encoder[0]",
        f"  3.125e-06 {EMBEDDINGS}",
    ]
    found = lines(config(3, ["!model/*embed*", "!model/encoder[0]"], learning_rate=1e-4, layer_decay=0.5))
    assert found[1:] == ["  0.0001    heads, model/encoder[2]", "  5e-05     model/encoder[1]"]
    assert lines(config(3)) == []


def test_the_lines_have_the_rates_of_muons_adamw_and_of_schedules_with_another_peak():
    muon = {"kind": "muon", "learning_rate": 2e-2, "adam_learning_rate": 1e-3, "rate_multipliers": {"heads": 0.5}}
    found = lines(config(3, ["model/encoder[2]/attention/query", "heads"], **muon))
    assert [line.split()[0] for line in found[1:]] == ["0.02", "0.01", "0.001", "0.0005"]
    assert "query/kernel" in found[1] and "query/bias" in found[3]
    schedules = {"t5": 0.25, "bert": 0.875, "constant": 1.0}  # of 4 steps of 32
    for kind, peak in schedules.items():
        schedule = {"kind": kind, "warmup_steps": 16 if kind == "t5" else 4}
        given = families.config("bert", train={"steps": 32}, optimizer={"learning_rate": 1.0, "schedule": schedule})
        built = given.optimizer.schedule.build(1.0, 32)
        assert max(float(built(step)) for step in range(32)) == given.optimizer.schedule.peak(1.0, 32) == peak
        optimizer = {"learning_rate": 1.0, "schedule": schedule, "rate_multipliers": {"heads": 0.5}}
        found = lines(families.config("bert", train={"steps": 32}, optimizer=optimizer))
        assert [float(line.split()[0]) for line in found[1:]] == [peak, peak / 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "optimizer"),
    [
        ("bert", {"layer_decay": 0.5, "layer_decay_offset": 1, "rate_multipliers": {"model/encoder[1:]/*/bias": 3.0}}),
        pytest.param("t5", {"layer_decay": 0.8}, marks=pytest.mark.grid),
    ],
)
def test_the_update_has_the_rates_that_are_shown(family, optimizer):
    """Under SGD a parameter moves by its rate times its gradient."""
    given = config(3, family=family, learning_rate=0.1, **optimizer)
    plain = config(3, family=family, learning_rate=0.1)
    tree = families.layout(given).tree
    shown = {}
    for line in lines(given)[1:]:
        rate, names = line.split(maxsplit=1)
        assert " more" not in names
        for path, held in patterns.union(names.split(", "), tree, "shown").items():
            shown.setdefault(path, np.zeros(held.shape))[...] += held * float(rate)
    moved = []
    for one in (plain, given):
        setup = state.setup(one, jax.devices()[:1])
        with setup.use():
            before = families.begin(setup)
            kept = flat(jax.device_get(before.params))
            after, _ = step.make_train_step(setup, one.objective)(before, step.put(families.batch(one), setup))
        moved.append({path: x - kept[path] for path, x in flat(jax.device_get(after.params)).items()})
    for path, x in moved[1].items():
        factor = shown[path].reshape(*shown[path].shape, *[1] * (x.ndim - shown[path].ndim)) / 0.1
        np.testing.assert_allclose(x, factor * moved[0][path], rtol=2e-3, atol=2e-7, err_msg=path)
        assert (factor > 0).all()
