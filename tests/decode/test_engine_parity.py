"""The engine writes what `transformers.generate` writes, token for token, with random models of all kinds.

Each prompt is alone in theirs; ours decodes all of them together. Equal tokens show something only if `transformers`
never chose between logits that are equal but for rounding: the smallest gap of each test is measured.
"""

import itertools

import numpy as np
import pytest

from jaxpt.decode.engine import Engine, Prompt
from jaxpt.decode.options import Options
from jaxpt.hf import load
from tests import grids
from tests.decode.test_beam_parity import ROUNDING, gaps, one_thread, report  # noqa: F401 (a fixture)
from tests.hf.parity import randomise, untie
from tests.hf.test_parity import BART_SIZES, GPT2_SIZES, LLAMA3, LLAMA_SIZES, MODERN_SIZES, OPT_SIZES, T5_SIZES

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings(
        "ignore:Unfeasible length"
    ),  # a prompt that fills the table: no room for the least length
]

TABLE, NEW, WINDOW = 31, 12, 5
LENGTHS = {"decoder": (5, 9, 19, 27, 7, TABLE), "encoder": (5, 9, 16, 3, 12, 1)}
"""Of prompts. 19 + 12 tokens fill the table of positions; after 31 there is no position for a second new token."""
TWO = {"n_layer": 2, "n_positions": TABLE}
ROPE = LLAMA_SIZES | {"num_hidden_layers": 2, "max_position_embeddings": TABLE}
T5 = T5_SIZES | {"num_layers": 2}
BART = BART_SIZES | {"encoder_layers": 2}
T5_1_1 = T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
# name: (class, configuration class, sizes, the decoder's first token)
MODELS = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2_SIZES | TWO, None),
    "gpt": ("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", GPT2_SIZES | TWO, None),
    "opt": (
        "OPTForCausalLM", "OPTConfig", OPT_SIZES | {"num_hidden_layers": 2, "max_position_embeddings": TABLE}, None,
    ),
    "llama, rope of Llama 3": ("LlamaForCausalLM", "LlamaConfig", ROPE | {"rope_parameters": LLAMA3}, None),
    "mistral": ("MistralForCausalLM", "MistralConfig", ROPE | {"sliding_window": WINDOW}, None),
    "modernbert-decoder": (
        "ModernBertDecoderForCausalLM", "ModernBertDecoderConfig",
        MODERN_SIZES | {"num_hidden_layers": 4, "max_position_embeddings": TABLE, "local_attention": 2 * WINDOW}, None,
    ),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5, 0),
    "t5 1.1": ("T5ForConditionalGeneration", "T5Config", T5_1_1, 0),
    "mt5": ("MT5ForConditionalGeneration", "MT5Config", T5, 0),
    "umt5": ("UMT5ForConditionalGeneration", "UMT5Config", T5, 0),
    "bart": ("BartForConditionalGeneration", "BartConfig", BART, 2),
    "mbart": ("MBartForConditionalGeneration", "MBartConfig", BART | {"scale_embedding": True}, 2),
    "olmo3, one layer with a window": ("Olmo3ForCausalLM", "Olmo3Config", ROPE | {
        "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}, None),
    "phi3, texts become long": ("Phi3ForCausalLM", "Phi3Config", ROPE | {
        "original_max_position_embeddings": 12, "pad_token_id": 0, "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 100.0, "original_max_position_embeddings": 12,
            "short_factor": [1.0, 1.5], "long_factor": [1.0, 6.0]}}, None),
}  # fmt: skip
LAYERS = ("olmo3, one layer with a window", "phi3, texts become long")
SEEDS = {
    "mistral": 4, "modernbert-decoder": 9, "t5": 8, "t5 1.1": 4, "mt5": 4, "umt5": 7, "mbart": 45,
    **dict.fromkeys(LAYERS, 5),
}  # fmt: skip
"""Weights with which a model does not repeat one token, and never chooses between equals; 3 for the others."""
UNTIED = ("t5 1.1", "mt5", "umt5")
FORCED = ("bart", "mbart")
FIRST, LAST = 33, 2
# Beams, length penalty, early stopping, samples: two of these for each model.
BEAMS = (
    (4, 0.6, False, 4), (5, 2.0, True, 3), (4, 1.0, True, 1), (5, 0.6, False, 2), (4, 2.0, False, 3), (5, 1.0, True, 5),
)  # fmt: skip
NAMES = {
    "repetition_penalty": "repetition_penalty", "no_repeat_ngram": "no_repeat_ngram_size", "min_length": "min_length",
    "min_new_tokens": "min_new_tokens", "forced_first": "forced_bos_token_id", "forced_last": "forced_eos_token_id",
    "beams": "num_beams", "length_penalty": "length_penalty", "early_stopping": "early_stopping",
    "samples": "num_return_sequences",
}  # fmt: skip
"""Ours: theirs. EOS and bad words are lists of theirs."""


class Pair:
    """The same model here and there, and prompts for both."""

    def __init__(self, name, path):
        import transformers

        self.name = name
        of, config, sizes, self.start = MODELS[name]
        theirs = getattr(transformers, of)(getattr(transformers, config)(**sizes))
        self.theirs = randomise(untie(theirs) if name in UNTIED else theirs, SEEDS.get(name, 3))
        self.theirs.save_pretrained(path)
        network, params = load(path)
        network = network.with_model(dtype="float32")
        self.together, self.refilled = (Engine(network, params, batch_size=size) for size in (16, 3))
        # Nothing but what a test asks for: BART's own settings force tokens.
        self.theirs.generation_config = transformers.GenerationConfig(
            decoder_start_token_id=self.start, pad_token_id=0, max_length=None
        )
        rng = np.random.default_rng(5)
        lengths = LENGTHS["decoder" if self.start is None else "encoder"]
        self.inputs = [rng.integers(3, 101, length).tolist() for length in lengths]
        self.plain = [row[0][0] for row in self.write(Options(max_new_tokens=NEW))[0]]
        self.eos = _ends(self.plain)

    @property
    def prompts(self):
        """For the engine."""
        if self.start is None:
            return [Prompt(tokens) for tokens in self.inputs]
        return [Prompt([self.start], tokens) for tokens in self.inputs]

    def room(self, tokens):
        """New tokens that theirs may have."""
        return min(NEW, TABLE + 1 - len(tokens)) if self.start is None else NEW

    def write(self, options):
        """What theirs writes: [[(new tokens, score)] of each prompt], and the smallest gap between its choices."""
        import torch

        asked = {theirs: getattr(options, ours) for ours, theirs in NAMES.items()}
        off = {theirs: getattr(Options, ours) for ours, theirs in NAMES.items()}
        asked = {key: value for key, value in asked.items() if value != off[key]}  # 0 of one least length overrides
        asked |= {"eos_token_id": list(options.eos) or None, "do_sample": False}
        asked["bad_words_ids"] = [list(word) for word in options.bad_words] or None
        asked |= {"output_scores": True, "return_dict_in_generate": True}
        rows, smallest = [], np.inf
        for tokens in self.inputs:
            with gaps() as found, torch.no_grad():
                out = self.theirs.generate(torch.tensor([tokens]), max_new_tokens=self.room(tokens), **asked)
            first = 1 if self.start is not None else len(tokens)
            new = [_ended(row[first:].tolist(), options.eos) for row in out.sequences]
            if options.beams == 1:
                found = [float(gap) for x in out.scores for gap in -x[0].sort(descending=True).values[:2].diff()]
            smallest = min(smallest, *found)
            rows.append(list(zip(new, [None] if options.beams == 1 else out.sequences_scores.tolist())))
        return rows, smallest

    def check(self, options, engine=None):
        """Ours equal theirs; returns the texts."""
        wanted, gap = self.write(options)
        found = list((engine or self.together).generate(self.prompts, options))
        assert len(found) == len(self.inputs) * options.samples
        for one in found:
            tokens, score = wanted[one.index][one.sample]
            assert one.tokens == tokens, (one.index, one.sample)
            assert one.finish == ("eos" if tokens[-1] in options.eos else "length")
            if score is not None:
                np.testing.assert_allclose(one.score, score, atol=ROUNDING, rtol=1e-6)
        report(gap)
        return [[tokens for tokens, _ in row] for row in wanted]


def _ended(tokens, eos):
    """Without the padding after the first EOS."""
    return next((tokens[: i + 1] for i, token in enumerate(tokens) if token in eos), tokens)


def _ends(texts):
    """Two ids that end texts at many lengths, but not all of them."""

    def lengths(ids):
        return [len(_ended(text, ids)) for text in texts]

    def worth(ids):
        ended = lengths(ids)
        whole = sum(a == len(text) > 1 for a, text in zip(ended, texts))
        return bool(whole), sum(n > 1 for n in ended), len(set(ended)), sum(ended)

    ids = {token for text in texts for token in text}
    return max(itertools.combinations(sorted(ids), 2), key=worth)


@pytest.fixture(scope="module")
def pair(request, tmp_path_factory):
    return Pair(request.param, tmp_path_factory.mktemp("model"))


def of(*kept):
    """Those models run in the suite; that others' caches give what they give without is shown for every model."""
    return pytest.mark.parametrize("pair", grids.cases(MODELS, *kept), indirect=True)


@of("gpt2", "opt", "llama, rope of Llama 3", *LAYERS, "modernbert-decoder", "t5 1.1", "umt5", "bart")
def test_greedy_in_refilled_rows(pair):
    """Three rows for six prompts: short and long ones follow one another, EOS comes early and late."""
    texts = pair.check(Options(max_new_tokens=NEW, eos=pair.eos), pair.refilled)
    assert len({len(text) for row in texts for text in row}) >= 3
    if pair.start is None:
        assert [len(row[0]) for row in texts][-1] == 1, "no position for a second new token"


def penalties(pair):
    single = next(token for text in pair.plain for token in text if token not in pair.eos)
    second = tuple(pair.plain[2][1:3])
    return {"repetition_penalty": 1.3, "bad_words": ((single,), second), "min_new_tokens": 4}


def ngrams(pair):
    forced = {"forced_first": FIRST, "forced_last": LAST} if pair.name in FORCED else {}
    return {"no_repeat_ngram": 3, "min_length": 10} | forced


def beams(pair, turn):
    number = [*MODELS].index(pair.name) + 3 * turn
    beams, penalty, stop, samples = BEAMS[number % len(BEAMS)]
    options = {"beams": beams, "length_penalty": penalty, "early_stopping": stop, "samples": samples}
    return options | ({"repetition_penalty": 1.2} | ngrams(pair) if turn else {})


@of("gpt2", "t5 1.1")
def test_penalties_and_bans(pair):
    """A repetition penalty, bad words of one and two ids, no EOS before the fourth token."""
    options = penalties(pair)
    texts = pair.check(Options(max_new_tokens=NEW, eos=pair.eos, **options))
    assert all(options["bad_words"][0][0] not in text for row in texts for text in row)
    assert [row[0] for row in texts] != [_ended(text, pair.eos) for text in pair.plain]


@of("gpt2", "bart")
def test_no_repeated_ngrams(pair):
    """No 3-gram twice, no EOS before the tenth token, prompt included; BART and mBART with their forced tokens."""
    texts = pair.check(Options(max_new_tokens=NEW, eos=pair.eos, **ngrams(pair)))
    assert [row[0] for row in texts] != [_ended(text, pair.eos) for text in pair.plain]
    if pair.name in FORCED:
        assert all(text[0] == FIRST and (len(text) < NEW or text[-1] == LAST) for row in texts for text in row)


@of("mistral", "phi3, texts become long", "t5 1.1")
def test_beams(pair):
    """4 and 5 beams, several texts."""
    pair.check(Options(max_new_tokens=NEW, eos=pair.eos, **beams(pair, 0)))


@of("gpt2", "bart")
def test_beams_with_penalties_bans_and_forced_tokens(pair):
    pair.check(Options(max_new_tokens=NEW, eos=pair.eos, **beams(pair, 1)))
