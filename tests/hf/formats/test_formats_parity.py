"""Checkpoints of T5X, MaxText and Flax beside the classes of `transformers` with the same weights: forward to 1e-5."""

import shutil

import jax
import pytest

from jaxpt import hf
from jaxpt.hf import verify
from tests.hf.formats import layouts
from tests.hf.parity import V, randomise, untie

pytestmark = pytest.mark.parity
T5 = {"vocab_size": V, "d_model": 24, "d_kv": 10, "d_ff": 40, "num_heads": 3, "num_layers": 3}
LLAMA = {
    "vocab_size": V, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3,
    "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def tensors(model):
    """{name: array}, tied ones once under their first name."""
    names = dict(model.named_parameters())
    return {name: x.detach().numpy() for name, x in names.items()}


def t5(gated):
    import transformers

    more = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False} if gated else {"num_decoder_layers": 2}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5, **more))
    return untie(model) if gated else model


def llama(scaled=False):
    import transformers

    more = {"rope_parameters": LLAMA3} if scaled else {}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, **more))


def check(model, path):
    """All outputs of the checkpoint in `path` are those of the class, relative to the largest value."""
    import torch

    network, params = hf.load(path)
    config = network.config.model_copy(update={"dtype": "float32"})
    network = type(network)(config.build(), network.heads)
    inputs = verify.batch(config)
    with torch.no_grad():
        theirs = verify.theirs(model, inputs)
    ours = jax.jit(lambda params: verify.ours(network, params, inputs))(params)
    for name, found in verify.differences(ours, theirs, inputs).items():
        assert found.relative < 1e-5, (name, found)


@pytest.mark.parametrize(("gated", "scan", "layout"), [
    (False, False, "msgpack"), (False, True, "tensorstore"), (True, False, "tensorstore"), (True, True, "orbax"),
])  # fmt: skip
def test_t5x(gated, scan, layout, tmp_path):
    """T5 1.0, and T5 1.1 with its LM-adapted form, which has the same parameters."""
    model = randomise(t5(gated), 0)
    layouts.write_t5x(tmp_path / "checkpoint_7", layouts.t5x(tensors(model), scan), layout)
    check(model, tmp_path / "checkpoint_7")


@pytest.mark.parametrize(("scan", "scaled"), [(True, False), (False, False), (True, True)])
def test_maxtext(scan, scaled, tmp_path):
    model = randomise(llama(scaled), 0)
    layouts.write_maxtext(tmp_path / "0", layouts.maxtext(tensors(model), 3, 1, scan, paired=scaled))
    if scaled:
        model.save_pretrained(tmp_path / "twin")
        shutil.copy(tmp_path / "twin" / "config.json", tmp_path / "0")
    check(model, tmp_path / "0")


@pytest.mark.parametrize("make", [lambda: t5(False), lambda: t5(True), llama])
def test_flax(make, tmp_path):
    model = randomise(make(), 0)
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    layouts.write_flax(tmp_path, layouts.flax(tensors(model)))
    check(model, tmp_path)
