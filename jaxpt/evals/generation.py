"""Texts that a run generates, on its mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxpt.decode.engine import Engine, Prompt, Watch
from jaxpt.decode.options import Options
from jaxpt.decode.programs import Place
from jaxpt.objectives.text_to_text import Decoding
from jaxpt.runtime import progress
from jaxpt.train.state import Setup

_BATCH = 64
"""Texts that are generated together."""
ASK = 16
"""Texts between two questions whether to stop."""


def has_prefix(setup: Setup) -> bool:
    """True if a decoder reads the prompt in both directions."""
    return "decoder_prefix" in setup.config.objective.data_spec(setup.config.data.length).features


class Generation:
    """Generates on a run's mesh. Programs are kept; parameters are not, between two calls."""

    def __init__(self, setup: Setup) -> None:
        """For the network of a run.

        Args:
          setup: the run, for evaluation.
        """
        self._setup = setup
        self._engine: Engine | None = None

    def compile(self, prompts: Sequence[Prompt], options: Options) -> None:
        """Compiles what these prompts need, before there are parameters."""
        if prompts:
            self._made().compile(prompts, options)

    def __call__(
        self,
        params: Any,
        prompts: Sequence[Prompt],
        options: Options,
        stop: Callable[[], bool] = lambda: False,
        watch: Watch | None = None,
    ) -> list[list[int]] | None:
        """The most likely ids after each prompt.

        Args:
          params: the run's parameters.
          prompts: the same in all processes.
          options: search; one sample.
          stop: asked after every few prompts, in all processes after the same ones.
          watch: asked every few tokens of each row whether it ends, as the engine's.

        Returns:
          For each prompt its ids, with EOS if there is one; None if stopped.
        """
        engine = self._made()
        engine.load(params)
        answer_ids: list[list[int]] = [[] for _ in prompts]  # beam search may find none
        try:
            # Rows end after the same step in all processes, so results come in the same order.
            texts = progress.counted(
                engine.generate(prompts, options, watch=watch), "generating", len(prompts), "texts"
            )
            for done, generated in enumerate(texts, 1):
                answer_ids[generated.index] = generated.tokens
                if done % ASK == 0 and stop():
                    return None
        finally:
            engine.load(self._setup.placed_shapes().params)  # lets go of the copy
        return answer_ids

    def _made(self) -> Engine:
        if self._engine is None:
            place = Place(self._setup.mesh, tuple(self._setup.table.items()))
            shapes = self._setup.placed_shapes().params
            prefix = has_prefix(self._setup)
            self._engine = Engine(self._setup.network, shapes, place, batch_size=_BATCH, prefix=prefix)
        return self._engine


def search_options(decoding: Decoding, max_new_tokens: int, eos: int) -> Options:
    """The settings of the engine.

    Args:
      decoding: as the recipe has them.
      max_new_tokens: most tokens of an answer.
      eos: the id that ends one.
    """
    settings = decoding.model_dump() | {"max_new_tokens": max_new_tokens}
    if decoding.beams == 1:
        settings = {name: value for name, value in settings.items() if name not in ("length_penalty", "early_stopping")}
    return Options(**settings, eos=(eos,))
