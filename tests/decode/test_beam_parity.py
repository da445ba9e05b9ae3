"""Beam search finds what `transformers.generate` finds, token for token, with the same scores.

Each row of ours, of prompts of unequal lengths, is compared with a batch of that prompt alone of theirs. The smallest
gap between two candidates that `transformers` chose between is measured: equal tokens show something only if it is
wider than rounding.
"""

import contextlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.decode.beam import beam_search
from jaxpt.decode.logits import History
from jaxpt.hf import load
from tests import grids
from tests.decode import chains
from tests.hf.parity import randomise
from tests.hf.test_parity import BART_SIZES, GPT2_SIZES, T5_SIZES

pytestmark = pytest.mark.parity

ROUNDING = 1e-5
"""Scores are at most this far from theirs; candidates that they chose between are further from each other."""
PENALTIES = (0.0, 0.6, 1.0, 2.0, -1.0)
STOPS = (False, True, "never")


@contextlib.contextmanager
def gaps():
    """The gaps between the candidates that they chose between, those that are out (−1e9) left out."""
    import torch

    found, top_k = [], torch.topk

    def measuring(x, k, **options):
        if x.dim() == 2:
            best = x.sort(descending=True).values[:, : k + 1]
            gap = (best[:, :-1] - best[:, 1:])[best[:, 1:] > -1e7]
            found.extend(gap.flatten().tolist())
        return top_k(x, k, **options)

    torch.topk = measuring
    try:
        yield found
    finally:
        torch.topk = top_k


def check(ours, theirs):
    """Same tokens; scores and log-probabilities equal but for rounding."""
    assert [[tokens for tokens, _, _ in row] for row in ours] == [[tokens for tokens, _, _ in row] for row in theirs]
    for row, wanted in zip(ours, theirs, strict=True):
        for (_, score, log_probs), (_, their_score, their_log_probs) in zip(row, wanted, strict=True):
            np.testing.assert_allclose(score, their_score, atol=ROUNDING, rtol=1e-6)
            np.testing.assert_allclose(log_probs, their_log_probs, atol=ROUNDING, rtol=1e-6)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Torch's threads cost more than they bring in models of this size, ten times as much on busy cores."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def report(gap):
    """`pytest -s` shows it."""
    print(f"smallest gap {gap:.1e}", end=" ")
    assert gap > ROUNDING


# ---- chains: many options ------------------------------------------------------------------------------------------

CHAIN_V, SEED = 9, 1
CHAIN_PROMPTS = [[0, 1], [2, 3, 1], [8, 8], [7, 0, 8, 3, 1]]
ENDS = ((8,), (3, 8), (1, 4, 8), ())
GRID = tuple(enumerate(itertools.product(PENALTIES, STOPS)))


def in_parts(cases):
    """Cases with options, which `GRID` numbers: in the suite each has a part, which together are all; in the grid all.

    Those of a part are a diagonal: each penalty and each mode of stopping is in about as many.
    """
    parts = [[one for one in GRID if sum(divmod(one[0], 3)) % len(cases) == n] for n in range(len(cases))]
    whole = [pytest.param(case, GRID, marks=pytest.mark.grid, id=f"{case}-all") for case in cases]
    return [*(pytest.param(case, part, id=f"{case}-part") for case, part in zip(cases, parts)), *whole]


PARTS = in_parts([2, 3, 4, 5])
ALL_PARTS = pytest.param([part.values for part in PARTS if not part.marks], id="parts")


@pytest.mark.parametrize("parts", [ALL_PARTS, *(pytest.param([p.values], id=p.id, marks=p.marks) for p in PARTS[4:])])
def test_chains(parts):
    """All modes of stopping and length penalties, 1 to 4 samples, no EOS to three; hypotheses of many lengths."""
    tables = chains.tables(len(CHAIN_PROMPTS), CHAIN_V, seed=SEED)
    models = [chains.their_class()(table) for table in tables]
    lengths, smallest = set(), np.inf
    for beams, i, penalty, stop in ((beams, i, *of) for beams, grid in parts for i, of in grid):
        options = {
            "beams": beams, "samples": 1 + i % min(beams, 4), "eos_ids": ENDS[(i + beams) % 4],
            "length_penalty": penalty, "early_stopping": stop, "max_new_tokens": 11,
        }  # fmt: skip
        with gaps() as found:
            theirs = [
                chains.theirs(model, prompt, len(prompt), use_cache=False, **options)
                for model, prompt in zip(models, CHAIN_PROMPTS)
            ]
        smallest = min(smallest, *found)
        check(chains.search(tables, CHAIN_PROMPTS, **options), theirs)
        lengths |= {len(tokens) - len(prompt) for prompt, row in zip(CHAIN_PROMPTS, theirs) for tokens, _, _ in row}
    assert len(lengths) > 6
    report(smallest)


# ---- models: T5 1.1, BART, GPT-2 ----------------------------------------------------------------------------------

LIMIT = 10
DECODER_PROMPTS = [[5, 6, 7], [9], [11, 3, 8, 4, 20, 6], [40, 41]]
INPUTS = [[5, 6, 7, 9, 1], [9, 30, 2], [11, 3, 8, 4, 20, 6, 50], [40, 41, 42, 43]]
# name: (class, configuration class, sizes, the decoder's first token, EOS ids: those that this model likes to write)
MODELS = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2_SIZES | {"n_inner": 40}, None, (77, 48)),
    "t5 1.1": (
        "T5ForConditionalGeneration", "T5Config",
        T5_SIZES | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, 0, (9, 24),
    ),
    "bart": ("BartForConditionalGeneration", "BartConfig", BART_SIZES, 2, (64, 56)),
}  # fmt: skip


class Pair:
    """The same model here and there, and what is asked of both."""

    def __init__(self, name, path):
        import transformers

        of, config, sizes, self.start, self.ends = MODELS[name]
        self.theirs = randomise(getattr(transformers, of)(getattr(transformers, config)(**sizes)), seed=3)
        self.theirs.save_pretrained(path)
        network, params = load(path)
        self.ours = type(network)(network.config.model_copy(update={"dtype": "float32"}).build(), network.heads)
        self.ours = self.ours.bind(params)
        # Nothing but what a test asks for: BART's own settings force tokens.
        self.theirs.generation_config = transformers.GenerationConfig(
            decoder_start_token_id=self.start, pad_token_id=0, max_length=None
        )
        self.prompts = DECODER_PROMPTS if self.start is None else [[self.start]] * len(INPUTS)

    def search_theirs(self, **options):
        inputs = DECODER_PROMPTS if self.start is None else INPUTS
        return [
            chains.theirs(self.theirs, row, len(prompt), max_new_tokens=LIMIT, **options)
            for row, prompt in zip(inputs, self.prompts)
        ]

    def search_ours(self, **options):
        """The uncached model: it decodes all of a beam's tokens in each step."""
        columns = max(map(len, self.prompts)) + LIMIT
        tokens_RxT = padded(self.prompts, columns)
        length_R = jnp.array([*map(len, self.prompts)])
        state = {"tokens": tokens_RxT, "length": length_R}
        if self.start is not None:
            inputs_RxS = padded(INPUTS, max(map(len, INPUTS)))
            state["segments"] = (jnp.arange(inputs_RxS.shape[1]) < jnp.array([*map(len, INPUTS)])[:, None]).astype(int)
            state["encoded"] = self.ours.encode(inputs_RxS, segment_ids=state["segments"]).hidden

        def logits(state):
            encoder = (state["encoded"],) if "encoded" in state else ()
            of_encoder = {"encoder_segment_ids": state["segments"]} if encoder else {}
            hidden = self.ours.decode(state["tokens"], *encoder, **of_encoder).hidden
            return self.ours.logits(jnp.take_along_axis(hidden, state["length"][:, None, None] - 1, axis=1)[:, 0])

        def step(state, tokens_N):
            here_NxT = jnp.arange(columns) == state["length"][:, None]
            tokens_NxT = jnp.where(here_NxT, tokens_N[:, None], state["tokens"])
            state = state | {"tokens": tokens_NxT, "length": state["length"] + 1}
            return logits(state), state

        @jax.jit
        def search(state):
            history = History(state["tokens"], length_R, length_R)
            return beam_search(
                step, chains.gather, state, logits(state), history, max_new_tokens=LIMIT, log_probs=True, **options
            )

        return chains.lists(search(state), self.prompts)


def padded(rows, columns):
    return jnp.array([row + [0] * (columns - len(row)) for row in rows], jnp.int32)


@pytest.fixture(scope="module")
def pair(request, tmp_path_factory):
    return Pair(request.param, tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("pair, grid", in_parts([*MODELS]), indirect=["pair"])
def test_models(pair, grid):
    """4 and 5 beams with all modes of stopping and length penalties, 1 to 4 samples; EOS occurs at many lengths."""
    ended, smallest = set(), np.inf
    for i, (penalty, stop) in grid:
        options = {
            "beams": 4 + i % 2, "samples": 1 + i % 4, "eos_ids": pair.ends[: 1 + i % 3 % 2], "length_penalty": penalty,
            "early_stopping": stop,
        }  # fmt: skip
        with gaps() as found:
            theirs = pair.search_theirs(**options)
        smallest = min(smallest, *found)
        check(pair.search_ours(**options), theirs)
        rows = zip(pair.prompts, theirs)
        ended |= {len(t) - len(prompt) for prompt, row in rows for t, _, _ in row if t[-1] in options["eos_ids"]}
    assert len(ended) > 3
    report(smallest)


def process(repetition=1.0, no_repeat=0, least=0, first=None, last=None, ends=()):
    """The processors of these options, in their order."""

    def apply(log_probs_NxV, history):
        x, (rows, columns) = log_probs_NxV, history.tokens_BxT.shape
        tokens, length, row = history.tokens_BxT, history.length_B, jnp.arange(rows)[:, None]
        is_token_NxT = jnp.arange(columns) < length[:, None]
        ids_V = jnp.arange(x.shape[1])
        has_NxV = jnp.zeros(x.shape, bool).at[row, tokens].max(is_token_NxT)
        x = jnp.where(has_NxV, jnp.where(x < 0, x * repetition, x / repetition), x)
        if no_repeat:  # row n's n-grams that begin as its last n − 1 tokens, and have ended
            before = jnp.stack([jnp.roll(tokens, -i, axis=1) for i in range(no_repeat)], axis=-1)
            end = jnp.take_along_axis(tokens, length[:, None] + 1 - no_repeat + jnp.arange(no_repeat - 1), axis=1)
            same_NxT = (before[..., :-1] == end[:, None]).all(-1) & jnp.roll(is_token_NxT, 1 - no_repeat, axis=1)
            same_NxT &= jnp.arange(columns) <= columns - no_repeat
            same_NxT &= length[:, None] >= no_repeat - 1
            banned = jnp.zeros(x.shape, bool).at[row, before[..., -1]].max(same_NxT)
            x = jnp.where(banned, -jnp.inf, x)
        generated = length - history.prompt_B
        x = jnp.where((generated < least)[:, None] & jnp.isin(ids_V, jnp.array(ends, int)), -jnp.inf, x)
        for token, at in ((first, 0), (last, LIMIT - 1)):
            if token is not None:
                x = jnp.where((generated == at)[:, None], jnp.where(ids_V == token, 0.0, -jnp.inf), x)
        return x

    return apply


PROCESSORS = {
    "repetition": ({"repetition": 1.7}, {"repetition_penalty": 1.7}),
    "no repeated 3-grams": ({"no_repeat": 3}, {"no_repeat_ngram_size": 3}),
    "least length": ({"least": 5}, {"min_new_tokens": 5}),
    "forced last": ({"last": 0}, {"forced_eos_token_id": 0}),
    "all": (
        {"repetition": 0.8, "no_repeat": 3, "least": 4, "last": 0},
        {"repetition_penalty": 0.8, "no_repeat_ngram_size": 3, "min_new_tokens": 4, "forced_eos_token_id": 0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", grids.cases(PROCESSORS, "all"))
@pytest.mark.parametrize("pair", MODELS, indirect=True)
def test_processors(pair, name):
    """Those of `transformers` change what is found, and ours at the same place change it in the same way."""
    ours, theirs = PROCESSORS[name]
    if pair.start is not None:  # they force a first token where a single one is there before
        ours, theirs = ours | {"first": 33}, theirs | {"forced_bos_token_id": 33}
    options = {"beams": 4, "samples": 3, "eos_ids": pair.ends}
    with gaps() as found:
        wanted = pair.search_theirs(**options, **theirs)
    check(pair.search_ours(**options, process=process(**ours, ends=pair.ends)), wanted)
    without = pair.search_theirs(**options)
    assert wanted != without
    report(min(found))
