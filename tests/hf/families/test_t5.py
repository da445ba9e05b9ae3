"""Which names the embeddings of a T5 may have, and what that says of the projection to the vocabulary."""

import numpy as np
import pytest

from jaxpt.errors import UserError
from jaxpt.hf import directory, mapping
from jaxpt.hf.families.t5 import EMBEDDINGS
from jaxpt.hf.options import from_json
from jaxpt.models import stored
from tests.hf.states import from_hf

SIZES = {"vocab_size": 9, "d_model": 4, "d_kv": 2, "num_heads": 2, "d_ff": 6, "num_layers": 1}
SPARSE = {"num_decoder_layers": 1, "num_experts": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}


def opened(model_type, tensors):
    """(configuration, its missing and unexpected tensors, value of the embeddings) from tensors by name."""
    family = directory.families()[model_type]
    more = SPARSE if model_type == "switch_transformers" else {"feed_forward_proj": "gated-gelu"}
    given = SIZES | more | {"architectures": [family.classes], "model_type": model_type}
    config = from_json(family, given, tensors)
    network = family.network(config)
    body = {name: np.zeros(x.shape, x.dtype) for name, x in whole(network, family).items() if name not in tensors}
    body = {name: x for name, x in body.items() if name not in (*EMBEDDINGS, "lm_head.weight")}
    return config, from_hf({**body, **tensors}, family.table_of(network), network)["model"]


def whole(network, family):
    """Zeros under all names."""
    params = {path: np.zeros(x.shape, np.float32) for path, x in stored.stored_params(network).items()}
    return dict(mapping.tensors(params, family.table_of(network), network))


@pytest.mark.parametrize("model_type", ["t5", "mt5", "umt5", "switch_transformers"])
@pytest.mark.parametrize("name", EMBEDDINGS)
def test_an_untied_head_beside_any_name_of_the_embeddings(name, model_type):
    rng = np.random.default_rng(0)
    table, head = (rng.normal(size=(9, 4)).astype(np.float32) for _ in range(2))
    config, params = opened(model_type, {name: table, "lm_head.weight": head})
    assert not config.tie_embeddings
    np.testing.assert_array_equal(params["token_embed"]["table"][:9], table)
    np.testing.assert_array_equal(params["head"]["kernel"][:, :9], head.T)
    config, params = opened(model_type, {name: table, "lm_head.weight": table})
    assert config.tie_embeddings and "head" not in params


def test_two_tables_that_differ_are_refused():
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(size=(9, 4)).astype(np.float32) for name in EMBEDDINGS[1:]}
    with pytest.raises(UserError, match=r"decoder\.embed_tokens\.weight and shared\.weight differ"):
        opened("t5", tensors | {"lm_head.weight": tensors[EMBEDDINGS[1]]})
