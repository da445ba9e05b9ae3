"""Fills what is missing in a text.

encoder          the [MASK] sat on the [MASK]           BERT's [MASK], RoBERTa's <mask>: as the tokenizer writes it
T5, UL2          the <extra_id_0> sat on <extra_id_1>   spans of any length
BART             the <mask> sat on <mask>               spans of any length
fill in the middle   the cat <FILL> the mat             one span of any length
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxpt.decode import fill as masks
from jaxpt.decode import spans
from jaxpt.decode.batching import bucket
from jaxpt.decode.engine import Prompt
from jaxpt.decode.options import Options
from jaxpt.errors import UserError
from jaxpt.objectives.formats import Format
from jaxpt.objectives.seq2seq import mask_id

if TYPE_CHECKING:
    from jaxpt.inference.loaded import Loaded
    from jaxpt.inference.text import Completion

FILL = "<FILL>"
"""Stands for the middle in the text of a fill-in-the-middle decoder."""
Candidates = list[tuple[str, float]]
"""(text, probability), the most likely first; of a model that generates, the probability of all spans together."""


def fills(model: Loaded, text: str) -> bool:
    """Whether the text has something missing that the model fills."""
    blanks = _blanks(model)
    if isinstance(blanks, str):
        return blanks in text
    return any(i in blanks for i in model.tokenizer.encode(text, special=True))


def fill(
    model: Loaded, texts: Sequence[str], k: int, keys: Mapping[str, Any], rows: Sequence[int] | None = None
) -> list[list[Candidates]]:
    """See `Loaded.fill`; `rows`: numbers that the samples of the texts depend on, by default 0, 1, …"""
    check(model)
    for number, text in enumerate(texts):
        if not fills(model, text):
            raise UserError(f"text {number}: has no mask; write {_written(model)} where something is missing")
    if model.family == "encoder":
        for key in keys:
            raise UserError(f"{key}: is no option of an encoder, which fills masks without generating")
        return _masks(model, texts, k)
    if keys.get("scores") is False:
        raise UserError("scores: False has no effect on candidates, which have probabilities; leave it out")
    beams = keys.get("beams", 1)
    keys = {"scores": True, **({"samples": min(k, beams)} if beams > 1 else {}), **keys}
    prompts = _prompts(model, texts, range(len(texts)) if rows is None else rows)
    return (_middles if model.family == "decoder" else _spans)(model, prompts, keys)


def _blanks(model: Loaded) -> str | frozenset[int]:
    """Ids that stand for what is missing, or the text that does."""
    v = model.vocabulary
    if model.family == "encoder":
        try:
            model.objective.lm_network(model.network.bind(model.params))
        except UserError:
            return frozenset()
        return frozenset({v.mask} if v.mask is not None else ())
    if model.family == "decoder":
        return FILL if model.reader.format().blank == "middle" else frozenset()
    layout = model.reader.format("NLU")
    if layout.blank == "sentinels":
        return frozenset(v.sentinel_ids).difference(layout.modes)
    return frozenset({mask_id(v, model.objective.kind)} if layout.blank == "mask" else ())


def check(model: Loaded) -> None:
    """Raises UserError if the model fills nothing."""
    if model.family == "encoder":
        model.objective.lm_network(model.network.bind(model.params))  # says why it predicts no tokens
    if not _blanks(model):
        raise UserError(
            f"{model.path}: {model.network.config.kind} with objective.kind: {model.objective.kind} fills nothing; use "
            "an encoder with [MASK] in its vocabulary, or a model of span_corruption, ul2, bart or fill_in_the_middle"
        )


def _written(model: Loaded) -> str:
    """How a blank is written."""
    blanks = _blanks(model)
    return blanks if isinstance(blanks, str) else model.tokenizer.tokens([max(blanks)])[0]


def _masks(model: Loaded, texts: Sequence[str], k: int) -> list[list[Candidates]]:
    tokenizer = model.tokenizer
    ids = [tokenizer.encode(text, special=True) for text in texts]
    with model.current():
        filled = masks.fill_masks(model.network, model.params, model.objective, model.vocabulary, ids, k=k)
    return [
        [
            [
                (tokenizer.decode([i]) or tokenizer.tokens([i])[0], float(p))
                for i, p in zip(mask.ids, mask.probabilities)
            ]
            for mask in of_text
        ]
        for of_text in filled
    ]


def prompt(model: Loaded, text: str) -> Prompt:
    """What a model that generates reads for a text with something missing.

    Args:
      model: no encoder.
      text: one that it fills.

    Raises:
      UserError: more is missing than the model fills in one text.
    """
    if model.family == "decoder":
        prefix, *others = text.split(FILL)
        if len(others) != 1:
            raise UserError(f"has {FILL} {len(others)} times; this model fills one middle")
        encoded = (model.tokenizer.encode(part, special=True) for part in (prefix, others[0]))
        return Prompt(spans.infilling_prompt(*encoded, model.vocabulary))
    ids = model.tokenizer.encode(text, special=True)
    mode = ids[:1] if model.reader.is_mode(ids) else []  # of UL2, written at the start
    layout = model.reader.format(None if mode else "NLU")
    pieces = _split(ids[len(mode) :], _blanks(model))
    pieces[0] = [*mode, *pieces[0]]
    return Prompt(list(layout.decoder_start), spans.span_input(pieces, layout, model.vocabulary))


def _prompts(model: Loaded, texts: Sequence[str], rows: Sequence[int]) -> list[Prompt]:
    prompts = []
    for number, (text, row) in enumerate(zip(texts, rows, strict=True)):
        try:
            prompts.append(prompt(model, text)._replace(row=row))
        except UserError as error:
            raise UserError(f"text {number}: {error}") from None
    return prompts


def _spans(model: Loaded, prompts: Sequence[Prompt], keys: Mapping[str, Any]) -> list[list[Candidates]]:
    """Of an encoder-decoder."""
    blanks, v, blank = _blanks(model), model.vocabulary, model.reader.format("NLU").blank
    counts = [sum(i in blanks for i in prompt.encoder) for prompt in prompts]
    options, limits = model.options(**keys), None
    if blank == "mask" and "max_new_tokens" not in keys:  # the answer is the whole text, whatever the others' lengths
        limits = [64 + bucket(len(prompt.encoder)) for prompt in prompts]
    completed = _completed(model, prompts, options, limits)

    def spans_of(number: int, completion: Completion) -> list[list[int]]:
        ids = [i for i in completion.tokens if i not in options.eos]
        if blank == "sentinels":
            return spans.spans_of_target(ids, counts[number], v)
        return _aligned(prompts[number].encoder, ids, model.reader.format(), mask_id(v, model.objective.kind))

    return [
        _candidates(model, [spans_of(number, completion) for completion in completed[number]], completed[number])
        or [[] for _ in range(counts[number])]  # beam search may find none
        for number in range(len(prompts))
    ]


def _aligned(inputs: Sequence[int], ids: list[int], layout: Format, mask: int) -> list[list[int]]:
    """The spans of BART, whose answer is the whole text."""
    restored = layout.wrap([i for i in ids if i not in layout.before])
    return spans.aligned_spans(inputs, restored, mask)


def _middles(model: Loaded, prompts: Sequence[Prompt], keys: Mapping[str, Any]) -> list[list[Candidates]]:
    """Of a fill-in-the-middle decoder."""
    return [
        [[(completion.text, _probability(completion)) for completion in of_prompt]]
        for of_prompt in _completed(model, prompts, model.options(**keys))
    ]


def _completed(
    model: Loaded, prompts: Sequence[Prompt], options: Options, limits: Sequence[int] | None = None
) -> list[list[Completion]]:
    """The completions of each prompt, the most likely first: samples come as drawn, beams by their length penalty.

    Args:
      model: no encoder.
      prompts: what it reads.
      options: of search and sampling.
      limits: most new tokens of each prompt; by default those of the options.
    """
    limits = limits or [options.max_new_tokens] * len(prompts)
    completed: dict[int, list[Completion]] = {}
    for limit in dict.fromkeys(limits):
        members = [number for number, of_prompt in enumerate(limits) if of_prompt == limit]
        limited = dataclasses.replace(options, max_new_tokens=limit)
        for index, samples in model.generate_iter([prompts[number] for number in members], limited):
            completed[members[index]] = sorted(samples, key=_probability, reverse=True)
    return [completed[number] for number in range(len(prompts))]


def _candidates(model: Loaded, candidate_spans: list[list[list[int]]], completed: list[Completion]) -> list[Candidates]:
    """Of each span its candidates, from the spans of each candidate."""
    return [
        [(model.tokenizer.decode(span), _probability(completion)) for span, completion in zip(of_span, completed)]
        for of_span in zip(*candidate_spans)
    ]


def _probability(completion: Completion) -> float:
    return math.exp(sum(completion.logprobs or ()))


def _split(ids: Sequence[int], blanks: Any) -> list[list[int]]:
    """The ids between the blanks."""
    pieces: list[list[int]] = [[]]
    for i in ids:
        if i in blanks:
            pieces.append([])
        else:
            pieces[-1].append(i)
    return pieces
