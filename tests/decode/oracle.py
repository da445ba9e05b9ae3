"""What processors of logits do to one row, in NumPy with loops and float64; and what Transformers does.

`python -m tests.decode.oracle` writes golden.json, the processed logits of CASES by Transformers' own list of
processors (GenerationMixin._get_logits_processor), with the versions that made it.
"""

import functools
import json
from pathlib import Path

import numpy as np

from jaxpt.decode.options import Options

GOLDEN = Path(__file__).with_name("golden.json")
V, T = 24, 12
PROMPT = np.array([5, 1, 2, 7])
LENGTH = np.array([9, 1, 3, 12])
SAMPLED = {"temperature": 0.8}
CASES = {
    "temperature": SAMPLED,
    "top_k": SAMPLED | {"top_k": 5},
    "top_p": SAMPLED | {"top_p": 0.7},
    "min_p": SAMPLED | {"min_p": 0.1},
    "typical_p": SAMPLED | {"typical_p": 0.6},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "no_repeat_1": {"no_repeat_ngram": 1},
    "no_repeat_2": {"no_repeat_ngram": 2},
    "no_repeat_3": {"no_repeat_ngram": 3},
    "min_length": {"min_length": 9, "eos": (3, 8)},
    "min_new_tokens": {"min_new_tokens": 2, "eos": (3,)},
    "bad_words": {"bad_words": ((4,), (3,), (0, 6), (2, 9), (1, 2, 9), (0, 1, 2, 11), (2, 12)), "eos": (3,)},
    "forced_first": {"forced_first": 7},
    "forced_last": {"forced_last": 3, "max_new_tokens": 5},
    "forced_last_of_two": {"forced_last": (3, 9), "max_new_tokens": 5},
    "suppress": {"suppress": (4, 0)},
    "suppress_first": {"suppress_first": (4, 0)},
    "suppress_after_forced": {"suppress_first": (4, 0), "suppress": (6,), "forced_first": 7},
    "filters": SAMPLED | {"top_k": 12, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.8},
    "all": SAMPLED | {
        "top_k": 12, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.8, "repetition_penalty": 0.6, "no_repeat_ngram": 2,
        "min_length": 9, "min_new_tokens": 2, "eos": (3,), "bad_words": ((4,), (2, 9)), "forced_first": 7,
        "forced_last": 3, "max_new_tokens": 5,
    },
}  # fmt: skip


def logits():
    """float32 [4, V], the same with every version of NumPy."""
    return (4 * np.sin(12.9898 * np.arange(1, 4 * V + 1) ** 1.5)).astype(np.float32).reshape(4, V)


def tokens():
    """int32 [4, T], of three ids, so that n-grams repeat."""
    return (np.arange(4 * T).reshape(4, T) ** 2 // 3 % 7 % 3).astype(np.int32)


def processed(logits_V, text, prompt, options: Options):
    """The processed logits of a row: float64 [V].

    Args:
      logits_V: the model's.
      text: list of ids so far.
      prompt: how many of them are the prompt.
      options: what is applied.
    """
    o, x = options, np.array(logits_V, np.float64)
    for token in set(text):
        x[token] = x[token] * o.repetition_penalty if x[token] < 0 else x[token] / o.repetition_penalty
    for token in set(text[prompt:]):
        x[token] -= o.presence_penalty + o.frequency_penalty * text[prompt:].count(token)
    n = o.no_repeat_ngram
    for end in range(n, len(text) + 1) if n else ():
        if text[end - n : end - 1] == text[len(text) - n + 1 :]:
            x[text[end - 1]] = -np.inf
    for word in o.bad_words:
        if len(word) == 1 and word[0] in o.eos:
            continue
        if len(text) >= len(word) - 1 and list(word[:-1]) == text[len(text) - len(word) + 1 :]:
            x[word[-1]] = -np.inf
    if len(text) < o.min_length or len(text) - prompt < o.min_new_tokens:
        x[list(o.eos)] = -np.inf
    forced = o.forced_first if len(text) == 1 else None
    if o.forced_last is not None and len(text) - prompt == o.max_new_tokens - 1:
        forced = o.forced_last
    if forced is not None:
        x[:] = -np.inf
        x[np.array(forced)] = 0
    x[list(o.suppress)] = -np.inf
    if len(text) == prompt + (prompt == 1 and o.forced_first is not None):
        x[list(o.suppress_first)] = -np.inf
    return filtered(x, o) if o.temperature else x


def filtered(x, o: Options):
    """The filters of sampling, one after the other, each by a sort."""
    x = x / o.temperature
    if o.top_k is not None:
        x[x < np.sort(x)[-min(o.top_k, len(x))]] = -np.inf
    if o.top_p is not None:
        best = np.argsort(-x, kind="stable")
        before = np.cumsum(softmax(x)[best]) - softmax(x)[best]
        x[best[before >= o.top_p]] = -np.inf
    if o.min_p is not None:
        x[softmax(x) < o.min_p * softmax(x).max()] = -np.inf
    if o.typical_p is not None:
        p = softmax(x)
        information = np.full_like(x, np.inf)
        information[p > 0] = -np.log(p[p > 0])
        distance = np.abs(information - (p[p > 0] * information[p > 0]).sum())
        nearest = np.argsort(distance, kind="stable")
        farthest = distance[nearest[(np.cumsum(p[nearest]) < o.typical_p).sum()]]
        x[distance > farthest] = -np.inf
    return x


def softmax(x):
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def transformers(logits_V, text, prompt, options: Options):
    """As `processed`, by Transformers' processors in Transformers' order: float32 [V]."""
    import torch
    from transformers import GenerationConfig

    o, model = options, _any_model()
    filters = {"temperature": o.temperature, "top_k": o.top_k or 0, "top_p": o.top_p, "min_p": o.min_p}
    filters |= {"typical_p": o.typical_p, "do_sample": True}
    config = GenerationConfig(
        max_length=prompt + o.max_new_tokens, min_length=o.min_length, min_new_tokens=o.min_new_tokens or None,
        repetition_penalty=o.repetition_penalty, no_repeat_ngram_size=o.no_repeat_ngram,
        bad_words_ids=[list(word) for word in o.bad_words] or None, forced_bos_token_id=o.forced_first,
        forced_eos_token_id=o.forced_last if o.forced_last is None else np.atleast_1d(o.forced_last).tolist(),
        suppress_tokens=list(o.suppress) or None, begin_suppress_tokens=list(o.suppress_first) or None,
        eos_token_id=list(o.eos) or None, pad_token_id=0,
        **(filters if o.temperature else {}),
    )  # fmt: skip
    model._prepare_special_tokens(config)
    apply = model._get_logits_processor(config, input_ids_seq_length=prompt)
    return apply(torch.tensor([list(text)]), torch.tensor(np.array(logits_V, np.float32))[None])[0].numpy()


@functools.cache
def _any_model():
    """The list of processors is a method of models; its weights and sizes do not matter."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=4, n_embd=2, n_layer=1, n_head=1))


def main():
    import torch
    import transformers as hf

    made = {"made_with": f"python -m tests.decode.oracle: transformers {hf.__version__}, torch {torch.__version__}"}
    for name, given in CASES.items():
        rows = zip(logits(), tokens().tolist(), LENGTH, PROMPT)
        out = [transformers(x, text[:length], int(prompt), Options(**given)) for x, text, length, prompt in rows]
        made[name] = [[None if np.isinf(x) else round(float(x), 5) for x in row] for row in out]
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in made.items())
    GOLDEN.write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
