"""Patterns over paths: what they match, layers of stacks of several kinds of blocks, and messages about wrong ones."""

import doctest
import re

import numpy as np
import pytest

from jaxpt.config.tree import TrainConfig
from jaxpt.errors import UserError
from jaxpt.models.network import Network
from jaxpt.train import patterns
from tests import families
from tests.models.helpers import EVERY


def leaves(model):
    return patterns.leaves(Network(model).shapes()["model"], Network(model).logical_axes()["model"])


@pytest.fixture(scope="module")
def bert():
    return leaves(families.config("bert", model={"layers": 4}).model.build())


def held(found):
    return {path: x.tolist() for path, x in found.items() if x.any()}


def test_doctests():
    assert doctest.testmod(patterns).failed == 0


def test_patterns_in_descriptions_hold_for_parameters_of_a_run():
    network = (config := families.config("bert", model={"layers": 12})).objective.network(config.model)
    tree = patterns.leaves(network.shapes(), network.logical_axes())
    lines = re.findall(r"^    (\S.*?)  +", patterns.__doc__, re.M)
    described = re.findall(r"'(.+?)'", TrainConfig.model_fields["trainable"].description)
    assert len(lines) == 6 and len(described) == 5
    for pattern in [*", ".join(lines).split(", "), *described]:
        assert 0 < len(held(patterns.union([pattern], tree, "k"))) <= len(tree)


def test_a_path_holds_for_all_below_it(bert):
    assert set(held(patterns.select("token_embed", bert, "k"))) == {"token_embed/table"}
    assert set(held(patterns.select("embed_norm", bert, "k"))) == {"embed_norm/scale", "embed_norm/bias"}
    assert len(held(patterns.select("*", bert, "k"))) == len(bert)
    biases = held(patterns.select("*/bias", bert, "k"))
    assert set(biases) == {path for path in bert if path.endswith("/bias")}


@pytest.mark.parametrize(
    ("pattern", "layers"),
    [
        ("encoder[2:]", [False, False, True, True]),
        ("encoder[:-3]", [True, False, False, False]),
        ("encoder[1]", [False, True, False, False]),
        ("encoder[-1]/attention/*", [False, False, False, True]),
        ("*coder[1:3]/*/kernel", [False, True, True, False]),
    ],
)
def test_layers(bert, pattern, layers):
    path = "encoder/segment_0/block_0/attention/query/kernel"
    found = patterns.select(pattern, bert, "k")
    assert found[path].tolist() == layers
    inner = pattern.partition("]/")[2]
    assert found["encoder/segment_0/block_0/feed_forward_norm/scale"].any() == (not inner)
    assert not found["token_embed/table"].any()


def test_layers_count_over_segments_and_blocks():
    """ModernBERT has one layer, then threes of local and global ones, then what is left of them."""
    tree = leaves(EVERY["modernbert"](layers=8).build())
    depth = max(leaf.depth for leaf in tree.values())
    of_each = {leaf.path: leaf.layers for leaf in tree.values() if leaf.inner == "attention/output/kernel"}
    assert len(of_each) > 1 and sorted(n for layers in of_each.values() for n in layers) == list(range(depth))
    found = patterns.select(f"encoder[{depth - 1}]", tree, "k")
    assert {leaf.layers[-1] for path, leaf in tree.items() if found[path].any()} == {depth - 1}


def test_exclusion_and_products(bert):
    found = patterns.union(["!encoder[:2]", "!token_embed"], bert, "k")
    assert not found["token_embed/table"] and found["type_embed/table"]
    assert found["encoder/segment_0/block_0/attention/query/bias"].tolist() == [False, False, True, True]
    found = patterns.union(["encoder", "!*/bias"], bert, "k")
    assert not any(found[path].any() for path in bert if path.endswith("bias") or not path.startswith("encoder"))
    found = patterns.product([("encoder[1:]", 0.5), ("*/bias", 0.1)], bert, "k")
    np.testing.assert_allclose(found["encoder/segment_0/block_0/attention/query/bias"], [0.1, 0.05, 0.05, 0.05])


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("encodr", "train.trainable: 'encodr' matches no parameter; did you mean encoder"),
        ("token_embd/table", "did you mean token_embed"),
        ("encoder[9:]", "matches no parameter"),
        ("encoder[9]", "encoder has the layers 0 to 3"),
        ("encoder[a]", "'encoder[a]' is no pattern; layers are written as in model/encoder[8:]/*/kernel"),
        ("encoder[]", "is no pattern"),
        ("decoder[1:]", "matches no parameter; did you mean encoder?"),
    ],
)
def test_wrong_patterns(bert, pattern, said):
    with pytest.raises(UserError) as error:
        patterns.select(pattern, bert, "train.trainable")
    assert said in str(error.value) and "\n" not in str(error.value)


def test_layers_that_share_their_parameters():
    with pytest.raises(UserError, match="the layers of encoder share their parameters"):
        patterns.select("encoder[1:]", leaves(EVERY["albert"](layers=2, groups=1).build()), "train.trainable")
