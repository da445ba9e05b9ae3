"""Checkpoints of llama2.c: a file made here, and a published model that must say what it is known to say."""

import gzip
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.decode.engine import Engine, Prompt
from jaxpt.decode.options import Options
from jaxpt.errors import UserError
from jaxpt.hf import llama2c
from jaxpt.models import stored
from jaxpt.models.positions import Rope, rotate

STORIES = Path(__file__).parents[3] / "shared" / "data" / "weights" / "stories260K"


def write(path, dim=12, mlp_dim=20, layers=2, heads=3, kv_heads=1, vocab=11, length=9):
    """A random checkpoint; returns its tensors by their names there."""
    rng, width = np.random.default_rng(0), dim // heads
    shapes = {
        "embed": (vocab, dim), "norm1": (layers, dim), "wq": (layers, dim, dim), "wk": (layers, kv_heads * width, dim),
        "wv": (layers, kv_heads * width, dim), "wo": (layers, dim, dim), "norm2": (layers, dim),
        "w1": (layers, mlp_dim, dim), "w2": (layers, dim, mlp_dim), "w3": (layers, mlp_dim, dim), "norm": (dim,),
        "rotation": (2, length, width // 2), "head": (vocab, dim),
    }  # fmt: skip
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    with open(path, "wb") as file:
        np.array([dim, mlp_dim, layers, heads, kv_heads, -vocab, length], np.int32).tofile(file)
        for tensor in tensors.values():
            tensor.tofile(file)
    return tensors


def load(path):
    opened = llama2c.open_file(path)
    params = stored.gather(opened.pieces(), stored.stored_params(opened.network))
    return opened.network, params


def test_tensors_and_their_layout(tmp_path):
    tensors = write(tmp_path / "m.bin")
    model, params = load(tmp_path / "m.bin")
    assert (model.config.kv_heads, model.config.tie_embeddings, model.config.max_positions) == (1, False, 9)
    block = params["model"]["decoder"]["segment_0"]["block_0"]
    np.testing.assert_array_equal(block["feed_forward"]["gate"]["kernel"][1], tensors["w1"][1].T)
    np.testing.assert_array_equal(block["attention"]["output"]["kernel"], tensors["wo"].swapaxes(1, 2))
    np.testing.assert_array_equal(params["model"]["head"]["kernel"][:, :11], tensors["head"].T)


def test_neighbouring_pairs_become_halves(tmp_path):
    """The scores of queries and keys turned as llama2.c turns them, pair by pair."""
    tensors = write(tmp_path / "m.bin")
    _, params = load(tmp_path / "m.bin")
    x, width = np.random.default_rng(1).normal(size=(5, 12)), 4
    kernels = params["model"]["decoder"]["segment_0"]["block_0"]["attention"]
    angle = np.arange(5)[:, None] * 10_000.0 ** (-np.arange(0, width, 2) / width)

    def theirs(y):
        even, odd = y[..., ::2], y[..., 1::2]
        turned = even * np.cos(angle) - odd * np.sin(angle), even * np.sin(angle) + odd * np.cos(angle)
        return np.stack(turned, -1).reshape(y.shape)

    def ours(y):
        rotation = Rope().rotation(jnp.arange(5)[None], width)
        return rotate(jnp.asarray(y)[None, :, None], rotation)[0, :, 0]

    want = theirs(x @ tensors["wq"][0][:4].T) @ theirs(x @ tensors["wk"][0].T).T
    got = ours(x @ kernels["query"]["kernel"][0][:, :4]) @ ours(x @ kernels["key"]["kernel"][0]).T
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_other_files_are_refused(tmp_path):
    write(tmp_path / "m.bin")
    (tmp_path / "m.bin").write_bytes((tmp_path / "m.bin").read_bytes()[:-4])
    (tmp_path / "n.bin").write_bytes(b"short")
    for name in ("m.bin", "n.bin"):
        with pytest.raises(UserError, match=r"not a checkpoint of llama2\.c"):
            llama2c.open_file(tmp_path / name)


def test_a_tensor_that_is_not_finite_is_named(tmp_path):
    write(tmp_path / "m.bin")
    with open(tmp_path / "m.bin", "r+b") as file:
        file.seek(4 * (7 + 11 * 12 + 3))  # in the first norm, behind header and embeddings
        file.write(np.float32(np.inf).tobytes())
    with pytest.raises(UserError, match=r"weights: model/decoder/.*/attention_norm/scale is not finite"):
        load(tmp_path / "m.bin")


@pytest.mark.slow
@pytest.mark.skipif(not STORIES.is_dir(), reason="the published model is not here")
def test_stories260k_says_what_it_is_known_to_say():
    import sentencepiece

    words = sentencepiece.SentencePieceProcessor(model_file=str(STORIES / "tok512.model"))
    known = gzip.decompress((STORIES / "stories260K.md.gz").read_bytes()).decode()
    known = known.split("-t 0.0\n")[1].split("\n```")[0]
    network, params = load(STORIES / "stories260K.bin")
    (said,) = Engine(network, params).generate([Prompt([1])], Options(max_new_tokens=256))
    assert words.decode(said.tokens).startswith(known)
