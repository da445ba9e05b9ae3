"""The benchmark of a training step: the batch that both sides get, and equal losses of tiny models."""

import runpy

import numpy as np
import pytest

from tests.config.helpers import ROOT

SIZES = {
    "bert": "layers: 1, embed_dim: 16, heads: 2, mlp_dim: 32",
    "gpt2": "layers: 1, embed_dim: 16, heads: 2, mlp_dim: 32, max_positions: 32",
    "t5": "layers: 1, embed_dim: 16, heads: 2, head_dim: 8, mlp_dim: 32",
}
OBJECTIVES = {"bert": "masked_lm", "gpt2": "causal_lm", "t5": "span_corruption"}


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools/bench"))
    return runpy.run_path(str(ROOT / "tools/bench/__main__.py"))


def test_both_sides_get_the_same_batch(bench, monkeypatch):
    import cases

    class Shape:
        def __init__(self, shape):
            self.shape, self.dtype = shape, np.dtype(np.int32)

    names = ("encoder_input_tokens", "encoder_positions", "masked_positions", "masked_targets", "masked_weights")
    batch = cases.random_batch({name: Shape((3, 4 if "masked" in name else 16)) for name in names}, 50)
    theirs = cases.of_transformers(batch)
    assert (theirs["labels"] != -100).sum() == 12
    for row in range(3):
        assert list(theirs["labels"][row, batch["masked_positions"][row]]) == list(batch["masked_targets"][row])
    names = ("decoder_input_tokens", "decoder_target_tokens", "decoder_positions", "decoder_loss_weights")
    batch = cases.random_batch({name: Shape((3, 16)) for name in names}, 50)
    assert (batch["decoder_target_tokens"][:, :-1] == batch["decoder_input_tokens"][:, 1:]).all()
    assert batch["decoder_loss_weights"].sum() == 3 * 15
    for case in bench["CASES"].values():
        assert (cases.CONFIGS / f"{case.model}.yaml").exists()


@pytest.mark.parity
@pytest.mark.parametrize("kind", SIZES)
def test_tiny_models_have_equal_first_losses(bench, kind, tmp_path):
    (tmp_path / "tiny.yaml").write_text(f"model: {{kind: {kind}, vocab_size: 128, {SIZES[kind]}}}\n")
    case = bench["Case"](str(tmp_path / "tiny"), OBJECTIVES[kind], 8, 32)  # 8 devices
    found = bench["measured"]("tiny", case, ["jaxpt", "torch"], "float32", rounds=1, steps=2)
    losses = [one["first_loss"] for one in found["sides"].values()]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert "tokens/s" in bench["table"]([found])
    bench["picture"]([found], tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes()[:4] == b"\x89PNG"
