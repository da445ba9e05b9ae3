"""Small random models whose state matters, ours and in `transformers`: the next token depends on two and the length.

Without the length two texts with the same steps in another order would have the same score.

`python -m tests.decode.chains` prints the golden values of test_beam.py (needs torch and transformers).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.decode.beam import beam_search
from jaxpt.decode.logits import History

COMMON = {"samples": 2, "max_new_tokens": 12}


def tables(rows, vocab, seed=0):
    """Logits [rows, vocab, vocab, vocab] of the token after two others."""
    return np.random.default_rng(seed).normal(size=(rows, vocab, vocab, vocab)).astype(np.float32)


def scale(length):
    """Of the logits after so many tokens."""
    return 1 + length / 64


def state(tables_RxVxVxV, prompts):
    last_Rx2 = np.array([prompt[-2:] for prompt in prompts], np.int32)
    return {"table": tables_RxVxVxV, "last": last_Rx2, "length": np.array([*map(len, prompts)], np.int32)}


def logits(state):
    def one(table, last, length):
        return table[last[0], last[1]] * scale(length)

    return jax.vmap(one)(state["table"], state["last"], state["length"])


def step(state, tokens_N):
    last_Nx2 = jnp.stack([state["last"][:, 1], tokens_N], axis=1)
    state = state | {"last": last_Nx2, "length": state["length"] + 1}
    return logits(state), state


def gather(state, index_N):
    return jax.tree.map(lambda x: x[index_N], state)


@functools.cache
def _compiled(options):
    @jax.jit
    def search(state, limit, tokens_RxT, length_R):
        history = History(tokens_RxT, length_R, length_R)
        return beam_search(step, gather, state, logits(state), history, max_new_tokens=limit, **dict(options))

    return search


def run(tables_RxVxVxV, prompts, *, max_new_tokens, columns=None, **options):
    """Hypotheses; searches with the same options share a program."""
    columns = columns or max(map(len, prompts)) + int(np.max(max_new_tokens))
    tokens_RxT = np.full((len(prompts), columns), -7, np.int32)  # what is not text is never read
    for row, prompt in zip(tokens_RxT, prompts):
        row[: len(prompt)] = prompt
    length_R = np.array([len(prompt) for prompt in prompts], np.int32)
    search = _compiled(tuple(options.items()))
    return search(state(tables_RxVxVxV, prompts), np.asarray(max_new_tokens, np.int32), tokens_RxT, length_R)


def lists(found, prompts):
    """[[(tokens, score, log-probabilities)]] of each row and sample."""
    found = jax.tree.map(np.asarray, found)

    def one(row, sample):
        length = found.length_RxK[row, sample]
        logged = found.log_probs_RxKxT[row, sample]
        assert not logged[: len(prompts[row])].any() and not logged[length:].any()
        tokens = found.tokens_RxKxT[row, sample, :length].tolist()
        return tokens, float(found.score_RxK[row, sample]), logged[len(prompts[row]) : length].tolist()

    return [[one(row, sample) for sample in range(found.score_RxK.shape[1])] for row in range(len(prompts))]


def search(tables_RxVxVxV, prompts, **options):
    return lists(run(tables_RxVxVxV, prompts, log_probs=True, **options), prompts)


@functools.cache
def their_class():
    import torch
    import transformers
    from transformers.modeling_outputs import CausalLMOutput

    class Chain(transformers.PreTrainedModel, transformers.GenerationMixin):
        config_class = transformers.PretrainedConfig

        def __init__(self, table_VxVxV):
            super().__init__(transformers.PretrainedConfig(vocab_size=len(table_VxVxV), is_encoder_decoder=False))
            self.table = torch.nn.Parameter(torch.from_numpy(table_VxVxV))

        def forward(self, input_ids, **_):
            logits_BxV = self.table[input_ids[:, -2], input_ids[:, -1]] * scale(input_ids.shape[1])
            return CausalLMOutput(logits=logits_BxV[:, None])

    return Chain


def theirs(model, inputs, prompt_length, *, beams, samples=1, eos_ids=(), **options):
    """[(tokens, score, log-probabilities)] of one row's samples by `transformers.generate`."""
    import torch

    with torch.no_grad():
        found = model.generate(
            torch.tensor([inputs]), num_beams=beams, num_return_sequences=samples, eos_token_id=list(eos_ids) or None,
            do_sample=False, output_scores=True, return_dict_in_generate=True, **options,
        )  # fmt: skip
    logged = model.compute_transition_scores(found.sequences, found.scores, found.beam_indices)
    count = (found.beam_indices >= 0).sum(1)
    return [
        (tokens[: prompt_length + n].tolist(), float(score), log_probs[:n].tolist())
        for tokens, score, log_probs, n in zip(found.sequences, found.sequences_scores, logged, count)
    ]


GOLDEN = [
    (2, 1.5, False, (4,)), (2, 1.5, True, (4,)), (2, 1.5, "never", (4,)), (3, 0.0, False, (4,)),
    (3, -1.0, "never", (4,)), (4, 1.0, True, (4,)), (4, 1.0, "never", (4,)), (3, 0.6, False, (2, 4)),
]  # fmt: skip
"""Beams, length penalty, early stopping, EOS ids."""


def golden():
    from tests.decode.test_beam import PROMPTS, V

    models = [their_class()(table) for table in tables(len(PROMPTS), V)]
    for case in GOLDEN:
        options = dict(zip(("beams", "length_penalty", "early_stopping", "eos_ids"), case)) | COMMON
        print(f"    ({str(case)[1:-1]}, [")
        for model, prompt in zip(models, PROMPTS):
            row = theirs(model, prompt, len(prompt), use_cache=False, **options)
            print("        " + ", ".join(f'("{text(tokens, prompt)}", {score:.5f})' for tokens, score, _ in row) + ",")
        print("    ]),")


def text(tokens, prompt):
    """What was generated, as digits."""
    return "".join(map(str, tokens[len(prompt) :]))


if __name__ == "__main__":
    golden()
