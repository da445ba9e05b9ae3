"""A network as the harness asks it: each family as it was pretrained.

decoder            causal likelihood
encoder-decoder    the context in the encoder, the continuation as target; of a model that fills spans as the missing
                   span at the end of the context (`form` says which)
encoder            pseudo-log-likelihood of the continuation's tokens, one masked at a time, or with the later tokens of
                   its word (`unit: word`)

Long texts are scored in blocks: a decoder's as long as its positions, with one token before (the common harness's way);
an encoder-decoder's shorter, with more text before; an encoder's of 64 tokens with none. Each token is scored once.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from jaxpt.decode import likelihood
from jaxpt.decode.engine import Prompt
from jaxpt.decode.likelihood import Likelihood
from jaxpt.decode.prompts import PromptEncoder
from jaxpt.errors import UserError
from jaxpt.evals.few_shot import scoring
from jaxpt.evals.few_shot.examples import Example
from jaxpt.evals.few_shot.scoring import LoglikelihoodResult
from jaxpt.evals.few_shot.task import HarnessTask
from jaxpt.models.network import Network

BLOCK = {"encoder": (64, 0), "encoder_decoder": (32, 224), "decoder": (2048, 1)}
"""Family → (tokens that are scored together, tokens before them) of a long text, as far as the model's positions go."""
Complete = Callable[[Sequence[Prompt], int, Sequence[str]], list[str]]
"""(prompts, most new tokens, stop strings) → answers."""


class NetworkModel:
    """A network with its parameters.

    Attributes:
      truncated: number of contexts that were cut from the left so far.
      truncated_texts: number of texts that lost their end so far.
      progress: called with the share of the present likelihoods that are scored, from 0 to 1.
    """

    def __init__(
        self,
        network: Network,
        params: Any,
        reader: PromptEncoder,
        complete: Complete | None = None,
        *,
        form: Literal["plain", "span"] | None = None,
        unit: Literal["piece", "word"] = "piece",
        current: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """For a model of any family.

        Args:
          network: backbone and heads.
          params: on the devices.
          reader: from texts to ids.
          complete: writes answers; None: the model writes none.
          form: of an encoder-decoder; by default as it was pretrained.
          unit: of an encoder.
          current: makes the mesh current.
        """
        self._network, self._params, self._reader, self._complete = network, params, reader, complete
        self._form, self._unit, self._current = form, unit, current
        self.truncated = self.truncated_texts = 0
        self.progress: Callable[[float], None] = lambda share: None

    @property
    def scoring_method(self) -> str:
        """How it is scored, for people."""
        family, layout = self._network.config.family, self._reader.format("S2S")
        if family == "encoder":
            unit = "one token masked at a time" if self._unit == "piece" else "the later tokens of its word masked too"
            return "left to right by the query stream" if layout.permutes else f"pseudo-log-likelihood, {unit}"
        if family == "decoder":
            return "causal likelihood" + (", the context read in both directions" if layout.prefix_lm else "")
        form = likelihood.resolve_form(self._form, layout)
        return f"likelihood of the {'span missing at the end of the encoder' if form == 'span' else 'target'}'s text"

    def report_lines(self) -> list[str]:
        """What was cut so far, for people."""
        limit = self._network.config.position_limit
        counted = (
            (self.truncated, "contexts were cut from the left to the model's positions"),
            (self.truncated_texts, f"texts lost their end: the model has {limit} positions"),
        )
        return [f"{count:,} {what}" for count, what in counted if count]

    def likelihoods(self, contexts: Sequence[str], continuations: Sequence[str]) -> list[LoglikelihoodResult]:
        """See `scoring.Model`."""
        pairs = [self._reader.pair(*pair) for pair in zip(contexts, continuations, strict=True)]
        return [LoglikelihoodResult(score.total, score.tokens, score.is_greedy) for score in self._scored(pairs)]

    def rolling(self, texts: Sequence[str]) -> list[LoglikelihoodResult]:
        """See `scoring.Model`."""
        blocks = [self.blocks(self._reader.tokenizer.encode(text)) for text in texts]
        scores = iter(self._scored([block for of_text in blocks for block in of_text]))
        results = []
        for of_text in blocks:
            of_blocks = [next(scores) for _ in of_text]
            total, tokens = sum(score.total for score in of_blocks), sum(score.tokens for score in of_blocks)
            results.append(LoglikelihoodResult(float(total), tokens, all(score.is_greedy for score in of_blocks)))
        return results

    def check(self, task: HarnessTask) -> None:
        """Raises UserError for a task that this model cannot answer, or for settings that are not for the model."""
        if task.form != "similarity":
            self._reader.objective.check_writes(self._network.config.kind)
        self.check_settings()
        if task.form != "generate_until":
            return
        if self._complete is None or self._network.config.family == "encoder":
            raise UserError(
                f"{task.source}: {self._network.config.kind} writes no answers, which form generate_until wants"
            )
        self.prompts([], task.max_new_tokens)

    def check_examples(self, task: HarnessTask, examples: Sequence[Example]) -> None:
        """Raises UserError for an example with a text that the model cannot score: one without tokens, or too long."""
        for example in examples:
            try:
                self._lay(task, example)
            except UserError as error:
                if (match := re.match(r"(context|continuation|text) (\d+): ", str(error))) is None:
                    raise
                count, reason = len(example.continuations), str(error)[match.end() :]
                choice = f"choice {int(match[2]) % count}: " if count > 1 else ""
                part = "context: " if match[1] == "context" else ""
                raise UserError(f"{task.source}: {example.where}: {choice}{part}{reason}") from None

    def _lay(self, task: HarnessTask, example: Example) -> None:
        """Makes the ids of an example's texts, which raises UserError where the model cannot read them."""
        reader = self._reader
        if task.form == "similarity":
            reader.lay(self._network, reader.tokenizer.encode_batch(list(example.continuations)))
        elif task.form in ("multiple_choice", "pair", "loglikelihood"):
            pairs = [reader.pair(*pair) for pair in scoring.pairs(example)]
            likelihood.lay(
                self._network, reader.objective, reader.vocabulary, *map(list, zip(*pairs)),
                form=self._form, languages=reader.languages,
            )  # fmt: skip

    def check_settings(self) -> None:
        """Raises UserError for a form that was not trained, a unit without effect, or a language that is missing."""
        reader, config, layout = self._reader, self._network.config, self._reader.format("S2S")
        if config.family == "encoder_decoder":
            form = likelihood.resolve_form(self._form, layout)
            likelihood.blank_ids(form, layout, reader.objective, reader.vocabulary)
        likelihood.check_unit(config, self._unit, layout)

    def completions(self, prompts: Sequence[str], max_new_tokens: int, stop: Sequence[str]) -> list[str]:
        """See `scoring.Model`."""
        assert self._complete is not None, "`check` refuses such a task"
        return self._complete(self.prompts(prompts, max_new_tokens), max_new_tokens, stop)

    def prompts(self, texts: Sequence[str], max_new_tokens: int) -> list[Prompt]:
        """Prompts, cut from the left to the positions that an answer leaves.

        Args:
          texts: prompts.
          max_new_tokens: of an answer.

        Returns:
          A prompt for each text.

        Raises:
          UserError: an answer leaves no position, or the model is an encoder.
        """
        read, limit = [self._reader.prompt(text) for text in texts], self._network.config.position_limit
        if limit is None:
            return read
        if max_new_tokens >= limit:
            raise UserError(
                f"max_new_tokens: {max_new_tokens} leaves nothing of the model's {limit} positions for a prompt; "
                f"wants {limit - 1} or less"
            )
        prompts, first = [], len(self._reader.format().before)
        for prompt in read:
            if prompt.encoder is None:
                cut = prompt._replace(tokens=prompt.tokens[-(limit - max_new_tokens) :])
            else:
                cut = prompt._replace(encoder=[*prompt.encoder[:first], *prompt.encoder[first:][-(limit - first) :]])
            self.truncated += cut != prompt
            prompts.append(cut)
        return prompts

    def embeddings(self, texts: Sequence[str]) -> np.ndarray:
        """See `scoring.Model`: the mean of the last layer's states."""
        ids = self._reader.tokenizer.encode_batch(list(texts))
        with self._current():
            embeddings = self._reader.embed(self._network, self._params, ids)
        self.truncated_texts += embeddings.truncated
        return np.stack(embeddings.vectors)

    def _scored(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Likelihood]:
        reader, starts = self._reader, None
        reader.objective.check_writes(self._network.config.kind)
        if not pairs:
            return []
        if self._network.config.family == "encoder" and self._unit == "word":
            starts = reader.tokenizer.word_starts()
        with self._current():
            likelihoods = likelihood.loglikelihood(
                self._network, self._params, reader.objective, reader.vocabulary, *map(list, zip(*pairs)),
                form=self._form, unit=self._unit, word_starts=starts, languages=reader.languages,
                progress=self.progress,
            )  # fmt: skip
        self.truncated += likelihoods.truncated
        return likelihoods.items

    def blocks(self, ids: Sequence[int]) -> list[tuple[list[int], list[int]]]:
        """The blocks in which a long text is scored.

        Args:
          ids: the text.

        Returns:
          (context, continuation) of each block.
        """
        config = self._network.config
        block, before = BLOCK[config.family]
        if config.position_limit is not None:
            special = len(self._reader.format("S2S").wrap([])) + 1
            block = min(block, config.position_limit - (0 if config.family == "decoder" else special))
            if config.family != "decoder":
                before = min(before, config.position_limit - block - special)
        opening = self._reader.opened([]) if config.family == "decoder" else []
        blocks = []
        for first in range(0, len(ids), block):
            targets = list(ids[first : first + block])
            # A decoder reads `limit` tokens whatever the block: a short last one has more before it.
            context_length = before + block - len(targets) if config.family == "decoder" else before
            context = list(ids[max(first - context_length, 0) : first])
            blocks.append((context or opening, targets))
        return blocks
