"""Dialogues and instructions: a decoder learns the assistant's answers, token by token.

    messages   user: 2 + 2?                      assistant: 4
    text       <|im_start|>user\\n2 + 2?<|im_end|>\\n<|im_start|>assistant\\n4<|im_end|>\\n   (the template's)
    targets                                                              4<|im_end|>

A dialogue is one record, and a segment of its own in a packed row. What an answer is says the template's generation
block; without one it is what the answer adds to the text. The template is saved with the run's tokenizer, so that
`jaxpt chat RUN_DIR` uses it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from jaxpt.config import AnyTask, ModelConfig
from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.data.labelled.dialogue import DialogueEncoder, Trim
from jaxpt.data.spec import DataSpec
from jaxpt.errors import UserError
from jaxpt.objectives.base import Baseline
from jaxpt.objectives.causal_lm import DecoderLM, decoder_features, lengths_of_texts


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

    def data_spec(self, length: int) -> DataSpec:
        encoder = DialogueEncoder(self.task, length + 1, self.trim, self.without_answer)
        uses = ("jaxpt.data.chat_template.of_tokenizer",)
        answers_only = self.train_on == "answers"
        transforms = Transforms(
            offline=(Call(preprocessors.labelled.encode, {"encoder": encoder}, uses),),
            online=(Call(preprocessors.features.decoder, {"length": length, "answers_only": answers_only}),),
        )
        return DataSpec(
            features=decoder_features(length) | {"decoder_answers": ((length,), "int32")},
            transforms=lambda vocabulary, seed: transforms,
            max_packed_lengths=lengths_of_texts,
            uses_chat_template=True,
            chat_template=self.template,
        )

    @property
    def baseline(self) -> Baseline:
        """Of the answers' tokens, whatever the loss is of."""
        return Baseline("unigram", "answer tokens", lambda batch, vocabulary: batch["decoder_answers"])

    def check(self, model: ModelConfig, length: int, vocabulary: Vocabulary) -> None:
        if self.task.kind != self.kind:
            raise UserError(f"objective.kind: {self.kind} does not fit task.kind: {self.task.kind}")
        self.task.check_metrics()
