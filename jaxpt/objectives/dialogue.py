"""Dialogues and instructions: a decoder learns the assistant's answers, token by token.

    messages   user: 2 + 2?                      assistant: 4
    text       <|im_start|>user\\n2 + 2?<|im_end|>\\n<|im_start|>assistant\\n4<|im_end|>\\n   (the template's)
    targets                                                              4<|im_end|>

A dialogue is one record, and a segment of its own in a packed row. What an answer is says the template's generation
block; without one it is what the answer adds to the text. The template is saved with the run's tokenizer, so that
`jaxpt chat RUN_DIR` uses it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from jaxpt.config import AnyTask, ModelConfig
from jaxpt.data import chat_template
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.labelled.dialogue import DialogueEncoder, Trim
from jaxpt.errors import UserError
from jaxpt.objectives.base import Arrays, Features
from jaxpt.objectives.causal_lm import DecoderLM, DecoderLMBatches, DecoderLMJudge


class Dialogue(DecoderLM):
    """Hyperparameters of learning from dialogues."""

    kind: Literal["dialogue"] = "dialogue"
    task: SkipJsonSchema[AnyTask] = Field(exclude=True)
    """The recipe's `task`."""
    template: str | None = None
    """Chat template: a Jinja file, `chatml` or `plain`; by default the tokenizer's own. The run saves it with its
    tokenizer."""
    train_on: Literal["answers", "all"] = "answers"
    """Targets: the assistant's tokens with what ends an answer, or all tokens."""
    trim: Trim = "oldest_turns"
    """Of a dialogue longer than `data.length`: `oldest_turns` leaves out whole turns, the oldest after the system
    message first, and cuts the end of a last one that is still too long; `end` cuts the end; `drop` leaves the dialogue
    out; `error`. Dialogues without an answer then are left out. The counts are printed."""
    without_answer: Literal["error", "skip"] = "error"
    """What happens with rows without a message of the assistant; the number of skipped ones is printed."""

    @property
    def batches(self) -> DialogueBatches:
        return DialogueBatches(self)

    @property
    def judge(self) -> DialogueJudge:
        return DialogueJudge(self)

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        if self.task.kind != self.kind:
            raise UserError(f"objective.kind: {self.kind} does not fit task.kind: {self.task.kind}")
        self.task.check_metrics()
        if self.template is not None:
            chat_template.ChatTemplate(chat_template.source(self.template), f"objective.template: {self.template}")


class DialogueBatches(DecoderLMBatches):
    """One dialogue or, packed, several in a row."""

    h: Dialogue
    uses_chat_template: ClassVar[bool] = True

    def chat_template(self) -> str | None:
        return None if self.h.template is None else chat_template.source(self.h.template)

    def features(self, length: int) -> Features:
        return super().features(length) | {"decoder_answers": ((length,), "int32")}

    def transforms(self, length: int, vocabulary: Vocabulary, seed: int) -> Transforms:
        encoder = DialogueEncoder(self.h.task, length + 1, self.h.trim, self.h.without_answer)
        uses = ("jaxpt.data.chat_template.of_tokenizer",)
        answers_only = self.h.train_on == "answers"
        return Transforms(
            offline=(Call(preprocessors.labelled.encode, {"encoder": encoder}, uses),),
            online=(Call(preprocessors.features.decoder, {"length": length, "answers_only": answers_only}),),
        )

    def max_packed_lengths(self, lengths: Arrays) -> dict[str, np.ndarray]:
        return {"decoder_input_tokens": lengths["tokens"] - 1}


class DialogueJudge(DecoderLMJudge):
    """Compares the answers' tokens with their unigram distribution, whatever the loss is of."""

    baseline: ClassVar[str] = "unigram"
    target_name: ClassVar[str] = "answer tokens"

    def eval_mask(self, batch: Arrays, vocabulary: Vocabulary) -> np.ndarray:
        return batch["decoder_answers"]
