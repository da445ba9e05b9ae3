"""Answers to dialogues by the chat template of a model's tokenizer: its prompt, and where an answer ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jaxpt import errors
from jaxpt.data import chat_template
from jaxpt.data.chat_template import ChatTemplate, Message
from jaxpt.data.tasks.dialogue import tools_of, with_system
from jaxpt.decode.engine import Prompt
from jaxpt.decode.options import ANSWER_TOKENS, Options
from jaxpt.errors import UserError

if TYPE_CHECKING:
    from jaxpt.inference.loaded import Loaded


def answer(
    model: Loaded, messages: Sequence[Message], tools: Any, template: str | Path | None,
    template_options: Mapping[str, Any], settings: Mapping[str, Any],
) -> str:  # fmt: skip
    """The answer to a dialogue; see `Loaded.chat`."""
    chosen = template_of(model, template, template_options)
    options = answer_options(model, chosen, {"max_new_tokens": ANSWER_TOKENS, **settings})
    chat_template.check(messages)
    messages = with_system(messages, model.system)
    ((_, completions),) = model.generate_iter([prompt(model, chosen, messages, tools_of(tools, "tools"))], options)
    if not completions:
        raise UserError(f"beams: {options.beams} beams found no answer within these options; loosen them")
    return completions[0].text


def template_of(
    model: Loaded, file: str | Path | None = None, options: Mapping[str, Any] = MappingProxyType({})
) -> ChatTemplate:
    """The chat template of a model.

    Args:
      model: the model.
      file: one with a template; by default the tokenizer's.
      options: variables of the template.

    Raises:
      UserError: the model is an encoder, or has no template; or the template reads no such variable.
    """
    if model.family == "encoder":
        raise UserError(f"{model.path}: is an encoder, which does not generate; wants a dialogue model")
    return chat_template.load(model.tokenizer, file, options=options)


def answer_options(model: Loaded, template: ChatTemplate, settings: Mapping[str, Any]) -> Options:
    """The settings of an answer, which ends where the template says.

    Args:
      model: the model.
      template: its chat template.
      settings: of `Options`.

    Raises:
      UserError: a setting is not known or out of range.
    """
    options = model.options(**settings)
    eos, stop = chat_template.end_of_answer(model.tokenizer, template)
    if new := [i for i in eos if i not in options.eos]:
        errors.note(f"an answer ends with {model.tokenizer.tokens(new)[0]} (id {new[0]}) of the chat template, too")
    return dataclasses.replace(
        options,
        eos=tuple(dict.fromkeys((*options.eos, *eos))),
        stop=tuple(dict.fromkeys((*options.stop, *stop))),
    )


def prompt(
    model: Loaded, template: ChatTemplate, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
) -> Prompt:
    """The prompt of a dialogue: for a decoder the ids of the template's text, as in training. Templates write BOS."""
    text = template.select(messages, tools).render(messages, tools=tools)
    if model.family != "decoder":
        return model.prompt_ids(text)
    return Prompt(model.tokenizer.encode_rendered(text).ids)
