"""Hidden states and scores equal those of PyTorch and Hugging Face's transformers, and weights go both ways."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.hf import bert, gpt2, t5
from jaxpt.hf.mapping import from_hf, to_hf
from jaxpt.models.bert import BertConfig
from jaxpt.models.gpt2 import GPT2Config
from jaxpt.models.t5 import T5Config

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

V, LAYERS, D, HEADS, FF, BATCH, LENGTH = 101, 3, 24, 3, 40, 3, 21
SEEDS = (0, 1)


def randomise(model, seed):
    """Weights large enough that every part of the model matters; tied tensors stay tied."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(0, 0.2, generator=generator)
            if "norm" in name.lower() or "ln_" in name:
                weight.add_(0 if name.endswith("bias") else 1)
    return model.eval()


def batch(seed, length=LENGTH):
    """Token ids and segment ids; rows end in 0, 4 and 8 tokens of padding."""
    tokens = np.random.default_rng(seed).integers(0, V, (BATCH, length))
    segments = (np.arange(length) < length - 4 * np.arange(BATCH)[:, None]).astype(np.int32)
    return tokens, segments


def close(ours, theirs, keep=None):
    ours, theirs = np.asarray(ours), theirs.detach().numpy()
    assert ours.shape == theirs.shape
    difference = np.abs(ours - theirs)
    assert (difference if keep is None else difference[keep]).max() < 1e-4 * np.abs(theirs).max()


def both_ways(model, params, table, config):
    """Exported weights load strictly, and equal what was imported."""
    state = to_hf(params, table, config)
    tensors = {name: torch.from_numpy(x.copy()) for name, x in state.items()}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, tensors[name]), name
    model.load_state_dict(tensors, strict=True)
    again = from_hf(state, table, config)
    jax.tree.map(np.testing.assert_array_equal, params, again)


@pytest.mark.parametrize("seed", SEEDS)
def test_bert(seed):
    theirs = transformers.BertConfig(
        vocab_size=V, hidden_size=D, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=FF,
        max_position_embeddings=32, tie_word_embeddings=True,
    )  # fmt: skip
    model = randomise(transformers.BertForPreTraining(theirs), seed)
    config = BertConfig(vocab_size=V, layers=LAYERS, embed_dim=D, heads=HEADS, mlp_dim=FF, max_positions=32)
    params = from_hf(model.state_dict(), bert.table(config), config)
    ours, variables = config.build(), {"params": params}

    tokens, segments = batch(seed)
    types = np.random.default_rng(seed + 9).integers(0, 2, tokens.shape)
    want = model(
        torch.from_numpy(tokens), attention_mask=torch.from_numpy(segments), token_type_ids=torch.from_numpy(types),
        output_hidden_states=True,
    )  # fmt: skip
    hidden = ours.apply(variables, tokens, token_types=types, segment_ids=segments, method="encode")
    real = segments.astype(bool)
    close(hidden, want.hidden_states[-1], real)
    close(ours.apply(variables, hidden, method="logits"), want.prediction_logits, real)
    close(ours.apply(variables, hidden, method="next_sentence"), want.seq_relationship_logits)
    both_ways(model, params, bert.table(config), config)


@pytest.mark.parametrize("seed", SEEDS)
def test_gpt2(seed):
    theirs = transformers.GPT2Config(
        vocab_size=V, n_embd=D, n_layer=LAYERS, n_head=HEADS, n_inner=FF, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    model = randomise(transformers.GPT2LMHeadModel(theirs), seed)
    config = GPT2Config(vocab_size=V, layers=LAYERS, embed_dim=D, heads=HEADS, mlp_dim=FF, max_positions=32)
    params = from_hf(model.state_dict(), gpt2.table(config), config)
    ours, variables = config.build(), {"params": params}

    tokens, segments = batch(seed)
    mask = torch.from_numpy(segments)
    want = model(torch.from_numpy(tokens), attention_mask=mask, output_hidden_states=True)
    hidden = ours.apply(variables, tokens, segment_ids=segments, method="decode")
    real = segments.astype(bool)
    close(hidden, want.hidden_states[-1], real)
    close(ours.apply(variables, hidden, method="logits"), want.logits, real)
    both_ways(model, params, gpt2.table(config), config)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_t5(version, seed):
    old = version == "1.0"
    theirs = transformers.T5Config(
        vocab_size=V, d_model=D, d_kv=5, num_heads=HEADS, d_ff=FF, num_layers=LAYERS, num_decoder_layers=2,
        relative_attention_num_buckets=8, relative_attention_max_distance=16,
        feed_forward_proj="relu" if old else "gated-gelu", tie_word_embeddings=old,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(theirs)
    if not old:  # tied in a random model, in spite of its configuration
        model.lm_head.weight = torch.nn.Parameter(torch.empty(V, D))
    model = randomise(model, seed)
    config = T5Config(
        vocab_size=V, layers=LAYERS, decoder_layers=2, embed_dim=D, heads=HEADS, head_dim=5, mlp_dim=FF, buckets=8,
        max_distance=16, feed_forward="relu" if old else "gated_gelu", tie_embeddings=old,
    )  # fmt: skip
    params = from_hf(model.state_dict(), t5.table(config), config)
    ours, variables = config.build(), {"params": params}

    tokens, segments = batch(seed)
    targets, target_segments = batch(seed + 9, length=13)
    want = model(
        torch.from_numpy(tokens), attention_mask=torch.from_numpy(segments),
        decoder_input_ids=torch.from_numpy(targets), output_hidden_states=True,
    )  # fmt: skip
    encoded = ours.apply(variables, tokens, segment_ids=segments, method="encode")
    close(encoded, want.encoder_last_hidden_state, segments.astype(bool))
    hidden = ours.apply(
        variables, targets, encoded, segment_ids=target_segments, encoder_segment_ids=segments, method="decode"
    )
    real = target_segments.astype(bool)
    close(hidden, want.decoder_hidden_states[-1], real)
    close(ours.apply(variables, jnp.asarray(hidden), method="logits"), want.logits, real)
    both_ways(model, params, t5.table(config), config)
