"""Completions of prompts as texts, in the order in which they are finished."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jaxpt.decode.engine import Engine, Prompt
from jaxpt.decode.options import Options
from jaxpt.inference.text import Completion, OnText, TextStreams

if TYPE_CHECKING:
    from jaxpt.inference.loaded import Loaded


def completions(
    model: Loaded, engine: Engine, prompts: Sequence[str | Prompt], options: Options, on_text: OnText | None, every: int
) -> Iterator[tuple[int, list[Completion]]]:
    """The completions of each prompt; see `Loaded.generate_iter`."""
    encoded = [model.prompt_ids(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
    texts = TextStreams(model.tokenizer, encoded, options, on_text)
    watch = texts.watch if on_text is not None or options.stop else None
    waiting: dict[int, dict[int, Completion]] = collections.defaultdict(dict)
    for generated in engine.generate(encoded, options, watch=watch, every=every):
        samples = waiting[generated.index]
        samples[generated.sample] = texts.completed(generated)
        if len(samples) == options.samples:
            yield generated.index, [samples[n] for n in sorted(waiting.pop(generated.index))]
    for index, samples in waiting.items():  # beam search may find fewer than requested
        yield index, [samples[n] for n in sorted(samples)]
