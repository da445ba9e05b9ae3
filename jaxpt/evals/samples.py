"""Predictions of a model for a few validation examples, next to the targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.config import PositiveInt, execution
from jaxpt.decode import decoding
from jaxpt.decode.decoding import Decoder, Prompts
from jaxpt.decode.fill import candidates
from jaxpt.decode.options import Options
from jaxpt.decode.spans import split_spans
from jaxpt.parallel import compiler
from jaxpt.parallel.distributed import to_host
from jaxpt.train.evaluators import Evaluate, Evaluator, Result
from jaxpt.train.state import Setup

if TYPE_CHECKING:
    from jaxpt.data.base import Data

SIDES = ("encoder", "decoder")
_SHOWN = 48  # tokens of a text that is continued, prompt included


class Samples(Evaluator):
    """Shows predicted spans, masked tokens or continuations of a few validation examples, next to the targets; nothing
    for an encoder without masked positions."""

    kind: Literal["samples"] = "samples"
    every: PositiveInt | Literal["end"] | None = execution("end")
    """Steps between evaluations; by default only at the end."""
    count: PositiveInt = 3
    """Number of examples."""

    def prepare(self, setup: Setup, data: Data) -> Evaluate:
        batch = _first_segments(next(data.validation.epoch(self.count, limit=self.count)))
        family = setup.config.objective.family
        if family == "encoder" and "masked_positions" not in batch:
            return lambda *_: Result(lines=())
        # Outside of `setup.use()`: few rows are not sharded.
        answers = compiler.jit(answers_of(setup, batch, data)).lower(setup.placed_shapes().params).compile()
        formatters = {"encoder": _masks, "decoder": _continuations, "encoder_decoder": _spans}
        show = formatters[family]

        def evaluate(params: Any, earlier: Mapping[str, float], stop: Callable[[], bool]) -> Result:
            return Result(lines=("a few validation examples:", *show(to_host(answers(params)), batch, data)))

        return evaluate


def answers_of(setup: Setup, batch: dict[str, np.ndarray], data: Data) -> Callable[[Any], jax.Array]:
    """A function from parameters to predicted ids [rows, predictions].

    Args:
      setup: the run.
      batch: validation examples, one in each row.
      data: the run's, for its vocabulary.

    Returns:
      A pure function.
    """
    network, objective, vocabulary = setup.network, setup.config.objective, data.vocabulary
    if objective.family == "encoder":
        return lambda params: candidates(objective.lm_network(network.bind(params)), batch, 1)[0][..., 0]
    zeros = np.zeros(len(batch["decoder_input_tokens"]), np.int32)
    if objective.family == "decoder":
        lengths, halves = _lengths(batch)
        length, half = int(lengths.max()), int(halves.max())
        # To the full length: a text that goes on after EOS shows the separator.
        options = Options(max_new_tokens=length)
        starts = np.maximum(np.arange(half) - (half - halves[:, None]), 0)  # prompts end in the same column
        tokens = np.take_along_axis(batch["decoder_input_tokens"], starts, axis=1)
        prompts = Prompts(tokens, halves, lengths, zeros, zeros)
    else:
        half, length = 1, 1 + batch["decoder_target_tokens"].shape[1]
        options = Options(
            max_new_tokens=length - 1, eos=() if vocabulary.eos is None else (vocabulary.eos,),
            first_sentinel=vocabulary.sentinel_ids.start,
        )  # fmt: skip
        prompts = Prompts(
            batch["decoder_input_tokens"][:, :1], zeros + 1, zeros + length, zeros, zeros,
            batch["encoder_input_tokens"], (batch["encoder_segment_ids"] > 0).sum(1).astype(np.int32),
            # Of a part of a text (MASS) the positions begin at its place there.
            batch["decoder_positions"][:, 0] if "decoder_positions" in batch else None,
        )  # fmt: skip
    decoder = Decoder(network.with_model(remat="none"), options, length, length, "decoder_prefix" in batch)

    def answers(params: Any) -> jax.Array:
        history = decoding.complete(decoder, params, jax.tree.map(jnp.asarray, prompts))
        written = jnp.arange(length) < history.length_B[:, None]
        return jnp.where(written, history.tokens_BxT, vocabulary.pad)[:, 0 if objective.family == "decoder" else 1 :]

    return answers


def _lengths(batch: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of each row's text that are shown, and of its prompt: int32 [rows] each."""
    lengths = (batch["decoder_segment_ids"] > 0).sum(1).clip(2, _SHOWN).astype(np.int32)
    return lengths, lengths // 2


def _first_segments(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The first packed example of each row; the others become padding."""
    of_first = {side: batch[f"{side}_segment_ids"] == 1 for side in SIDES if f"{side}_segment_ids" in batch}
    if "masked_positions" in batch:
        of_first["masked"] = np.take_along_axis(of_first["encoder"], batch["masked_positions"], axis=1)
    return {
        name: value * of_first[name.partition("_")[0]] if name.partition("_")[0] in of_first else value
        for name, value in batch.items()
    }


def _spans(answers: np.ndarray, batch: dict[str, np.ndarray], data: Data) -> Iterator[str]:
    targets, vocabulary = batch["decoder_target_tokens"], data.vocabulary
    for row in range(len(targets)):
        expected, model_says = (split_spans(x[row], vocabulary) for x in (targets, answers))
        inputs = batch["encoder_input_tokens"][row][batch["encoder_segment_ids"][row] > 0]
        names = {sentinel: index for index, sentinel in enumerate(expected)}
        yield f"  text   {_with_blanks(inputs, names, data)[:300]} …"
        for sentinel in list(expected)[:4]:
            guess, right = (_pieces(x.get(sentinel, []), data) for x in (model_says, expected))
            yield f"    <{names[sentinel]}>  model: {guess!r}   target: {right!r}"
        if not expected:  # targets without sentinels: shown as text
            for who, ids in (("model", answers[row]), ("target", targets[row])):
                yield f"    {who}: {data.tokenizer.decode(_up_to(vocabulary.eos, ids))[:300]!r}"


def _up_to(eos: int | None, ids: np.ndarray) -> list[int]:
    """The ids before the first EOS."""
    ends = np.flatnonzero(ids == eos)
    return ids[: ends[0] if len(ends) else len(ids)].tolist()


def _with_blanks(tokens: np.ndarray, names: dict[int, int], data: Data) -> str:
    """Decoded text with sentinels as <0>, <1>, …"""
    pieces, run = [], []
    for token in map(int, tokens):
        if token in names:
            pieces += [data.tokenizer.decode(run), f"<{names[token]}>"]
            run = []
        elif token != data.vocabulary.eos:
            run.append(token)
    return " ".join(p for p in [*pieces, data.tokenizer.decode(run)] if p)


def _pieces(tokens: list[int], data: Data) -> str:
    """Decodes a span without stripping spaces at its ends."""
    return "".join(data.tokenizer.tokens(tokens)).replace("▁", " ")


def _masks(guesses: np.ndarray, batch: dict[str, np.ndarray], data: Data) -> Iterator[str]:
    for row, guess in enumerate(guesses):
        pieces = np.array(data.tokenizer.tokens(batch["encoder_input_tokens"][row].tolist()), object)
        if "encoder_order" in batch:  # the inputs contain the targets, which are hidden only by the mask
            pieces[batch["masked_positions"][row][batch["masked_weights"][row] > 0]] = "⟨?⟩"
        yield f"  text   {' '.join(pieces[batch['encoder_segment_ids'][row] > 0])[:300]} …"
        for index in np.flatnonzero(batch["masked_weights"][row])[:5]:
            predicted, right = data.tokenizer.tokens([int(guess[index]), int(batch["masked_targets"][row, index])])
            yield f"    at {batch['masked_positions'][row, index]}:  model: {predicted!r}   target: {right!r}"


def _continuations(predictions: np.ndarray, batch: dict[str, np.ndarray], data: Data) -> Iterator[str]:
    for tokens, predicted, length, half in zip(
        batch["decoder_input_tokens"], predictions, *_lengths(batch), strict=True
    ):
        yield f"  prompt {data.tokenizer.decode(tokens[:half].tolist())!r}"
        yield f"    model: {data.tokenizer.decode(predicted[half:length].tolist())!r}"
        yield f"    target: {data.tokenizer.decode(tokens[half:length].tolist())!r}"
