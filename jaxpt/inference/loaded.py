"""A trained model with its tokenizer: it generates, scores, fills masks, embeds, predicts and shows what it computes.

model = jaxpt.load("runs/gpt2")
model.generate(["Once upon"], temperature=0.8, top_p=0.9)[0][0].text
model("Once upon", attentions=True).attentions[0]
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from jax.sharding import Mesh

from jaxpt import errors
from jaxpt.config import MeshConfig
from jaxpt.config.kinds import nearest
from jaxpt.data.calls import Vocabulary
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.decode import likelihood
from jaxpt.decode.embed import Layer, Pooling
from jaxpt.decode.engine import Engine, Prompt
from jaxpt.decode.forward import Forward
from jaxpt.decode.options import Options
from jaxpt.decode.programs import Place
from jaxpt.decode.prompts import PromptEncoder
from jaxpt.errors import UserError, shown
from jaxpt.inference import dialogue, filling, inspecting, opening, words
from jaxpt.inference.opening import Opened
from jaxpt.inference.predictor import RunPredictor
from jaxpt.inference.text import Completion, OnText, TextStreams
from jaxpt.inference.words import Spans, Words
from jaxpt.parallel import mesh as meshes
from jaxpt.train.display import note

DTYPES = ("auto", "float32", "bfloat16")


class Loaded:
    """A trained model with its tokenizer.

    Attributes:
      path: what it was loaded from.
      network: backbone and heads.
      objective: says how a text begins and ends.
      tokenizer: its tokenizer.
      languages: those that are read and written (mBART).
      system: the system message of the dialogues that a run learned from (`task.system`).
      reader: from texts to ids.
    """

    def __init__(
        self, opened: Opened, *, mesh: Mesh | MeshConfig | None = None, batch_size: int = 32, dtype: str | None = None
    ) -> None:
        """Places the parameters on the devices; `load` calls it."""
        self.path, self.objective, self.tokenizer = opened.path, opened.objective, opened.tokenizer
        self.languages, self.system = opened.languages, opened.system
        self._opened, self._dtype = dataclasses.replace(opened, params={}), dtype
        self.reader = PromptEncoder(
            opened.network.config, opened.objective, opened.tokenizer, opened.bos, opened.languages, opened.start
        )
        _check_choice("dtype", dtype, (None, *DTYPES))
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise UserError(f"batch_size: {batch_size!r} is no number of rows; wants an integer from 1 on")
        self.network = opened.network if dtype is None else opened.network.with_model(dtype=dtype)
        mesh = meshes.make(mesh) if isinstance(mesh, MeshConfig) else mesh
        self._place = Place(mesh)
        self._engine: Engine | None = None
        self._predictor: RunPredictor | None = None
        if self.family == "encoder" or not self.network.has_cache:
            self._params = opening.place_params(self.network, opened.params, self._place)
        else:
            is_prefix = self.family == "decoder" and self.reader.format().prefix_lm
            self._engine = Engine(self.network, opened.params, self._place, batch_size=batch_size, prefix=is_prefix)

    @property
    def family(self) -> Literal["encoder", "decoder", "encoder_decoder"]:
        """Family of the model."""
        return self.network.config.family

    @property
    def vocabulary(self) -> Vocabulary:
        """Ids of the special tokens."""
        return self.tokenizer.vocabulary

    @property
    def params(self) -> Any:
        """Parameters on the devices."""
        return self._params if self._engine is None else self._engine.params

    # ---- generation -------------------------------------------------------------------------------------------------

    def prompt_ids(self, text: str, special: bool = True) -> Prompt:
        """The prompt of a text, as the model was trained to read it.

        Args:
          text: any text.
          special: read special tokens that the text spells out as such.

        Returns:
          Of a decoder the ids, after BOS where its tokenizer puts one; of an encoder-decoder the encoder's input and
          the decoder's first tokens.

        Raises:
          UserError: the model is an encoder.
        """
        if self.family == "encoder":
            raise self._no_generation()
        return self.reader.prompt(text, special)

    def options(self, **keys: Any) -> Options:
        """Settings of search and sampling, with the ids of the model's files where `keys` have none.

        Args:
          **keys: fields of `Options`.

        Returns:
          The settings.

        Raises:
          UserError: a key is not known, or a value is out of range.
        """
        known = [field.name for field in dataclasses.fields(Options)]
        for key in keys:
            if key not in known:
                raise UserError(f"{key}: is no option of generation{nearest(key, known)}")
        return Options(**({"eos": self._opened.eos} | self._opened.forced | keys))

    @property
    def unapplied(self) -> tuple[str, ...]:
        """Settings of search in the model's files, which `options` does not take."""
        return self._opened.search

    def check(self, prompts: Sequence[str | Prompt], options: Options) -> None:
        """Checks prompts and options without generating.

        Args:
          prompts: texts or ids.
          options: as from `options`.

        Raises:
          UserError: as `generate`.
        """
        self._check_writes()
        self._engine.check(self._encoded(prompts), options)

    def generate(self, texts: Sequence[str | Prompt], **keys: Any) -> list[list[Completion]]:
        """Generates for each prompt.

        Args:
          texts: prompts.
          **keys: fields of `Options`.

        Returns:
          For each prompt its samples; none where beam search finds none.

        Raises:
          UserError: a prompt or an option is not as it must be, or the model is an encoder.
        """
        completions = dict(self.generate_iter(texts, self.options(**keys)))
        return [completions[number] for number in range(len(texts))]

    def generate_iter(
        self,
        prompts: Sequence[str | Prompt],
        options: Options | None = None,
        on_text: OnText | None = None,
        every: int = 16,
    ) -> Iterator[tuple[int, list[Completion]]]:
        """Generates for each prompt, in the order in which they are finished.

        Args:
          prompts: texts or ids.
          options: as from `options`.
          on_text: is given the text while it is generated, as far as no later token changes it.
          every: tokens between two calls.

        Yields:
          (number of the prompt, its samples).

        Raises:
          UserError: as `generate`.
        """
        self._check_writes()
        texts = TextStreams(self.tokenizer, self._encoded(prompts), options or self.options(), on_text)
        return texts.generate(self._engine, every)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | str | None = None,
        template: str | Path | None = None,
        template_options: Mapping[str, Any] = MappingProxyType({}),
        **keys: Any,
    ) -> str:
        """The answer to a dialogue, by the chat template of the tokenizer.

        Args:
          messages: [{"role": "user", "content": "…"}, …], the oldest first; a call of tools may have no content. Where
            they have no system message, the one stands first that a run learned with (`task.system`).
          tools: JSON schemas of tools for the template, or their JSON as text.
          template: a file with another chat template.
          template_options: variables of the template, such as {"enable_thinking": False}.
          **keys: fields of `Options`.

        Raises:
          UserError: the model does not generate or has no chat template, a message or a tool is not as it must be, or
            the template does not read tools, reasoning or options that are there.
        """
        return dialogue.answer(self, messages, tools, template, template_options, keys)

    # ---- what the model computes ----------------------------------------------------------------------------------

    def __call__(
        self,
        inputs: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        *,
        targets: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | None = None,
        decoder_inputs: Sequence[int] | Sequence[Sequence[int]] | None = None,
        layer: Layer | None = -1,
        attentions: bool = False,
    ) -> Forward | list[Forward]:
        """One forward pass: logits, hidden states and attention weights.

        Args:
          inputs: a text, or several; or ids, which get the special tokens of a text. Several give a list.
          targets: of an encoder-decoder, for each input a text or ids, which its decoder reads after its start tokens;
            by default it reads these alone.
          decoder_inputs: the same in place of `targets`, as ids that are read as they are.
          layer: whose hidden states are returned, as in `embed`; None for none.
          attentions: also return the attention weights of all layers.

        Raises:
          UserError: inputs of another type or longer than the model's positions, no such layer, or a model without
            attention.
        """
        return inspecting.call(self, inputs, targets, decoder_inputs, layer, attentions)

    def predict(self, inputs: Sequence[Any], task: str | None = None, top_k: int | None = None) -> list[dict[str, Any]]:
        """A fine-tuned model's answers: labels with probabilities, values, spans, tags, or text.

        The run's recipe says how they are computed; of the arguments of `load`, `tokenizer` and `dtype` count.

        Args:
          inputs: for each row its text, a tuple of its columns (question and context), or a dict by column.
          task: which one, of a run on several tasks.
          top_k: the likeliest labels whose probabilities are returned, as of `jaxpt predict`; all by default.

        Raises:
          UserError: the model is no run with a task, a row is not as it must be, or `top_k` is no positive number.
        """
        if self._predictor is None or self._predictor.task != task:
            self._predictor = RunPredictor.of(self.path, task, self.tokenizer, self._dtype)
        return inspecting.predict(self._predictor, inputs, top_k)

    def __repr__(self) -> str:
        return inspecting.describe(self)

    # ---- scores, masks, embeddings ----------------------------------------------------------------------------------

    def loglikelihood(
        self,
        contexts: Sequence[str],
        continuations: Sequence[str],
        unit: Literal["piece", "word"] = "piece",
        form: Literal["plain", "span"] | None = None,
    ) -> list[likelihood.Likelihood]:
        """Log-likelihoods of continuations given contexts; see `jaxpt.decode.likelihood`.

        A context that several continuations follow is read once, in whatever order the pairs are given.

        Args:
          contexts: texts; may be empty.
          continuations: as many texts.
          unit: of an encoder: mask one token at a time, or the later tokens of its word too.
          form: of an encoder-decoder: the continuation is the target, or the missing span at the end of the context.

        Returns:
          For each pair the log-probabilities of the continuation's tokens.

        Raises:
          UserError: an argument is wrong, a continuation is empty or too long, or an encoder has no masked-LM head.
        """
        _check_choice("unit", unit, ("piece", "word"))
        _check_choice("form", form, (None, "plain", "span"))
        _check_texts("loglikelihood: contexts", contexts)
        _check_texts("loglikelihood: continuations", continuations)
        if len(contexts) != len(continuations):
            raise UserError(f"{len(contexts)} contexts and {len(continuations)} continuations: there must be as many")
        self.objective.check_writes(self.path)
        if self.family == "encoder":
            filling.check(self)
        if not contexts:
            return []
        pairs = [self.reader.pair(*pair) for pair in zip(contexts, continuations)]
        word_starts = self.tokenizer.word_starts() if unit == "word" else None
        with self.current():
            likelihoods = likelihood.loglikelihood(
                self.network, self.params, self.objective, self.vocabulary, *map(list, zip(*pairs)), form=form,
                unit=unit, word_starts=word_starts, languages=self.languages,
            )  # fmt: skip
        _warn_of_truncated(likelihoods.truncated, "contexts were truncated from the left")
        return likelihoods.items

    def fills(self, text: str) -> bool:
        """Whether the text has a mask, a sentinel or `<FILL>` that this model fills."""
        return filling.fills(self, text)

    def fill(self, texts: Sequence[str], k: int = 5, **keys: Any) -> list[list[list[tuple[str, float]]]]:
        """Fills what is missing in texts: `[MASK]` or `<mask>`, `<extra_id_0>`, `<FILL>`; see `filling`.

        Args:
          texts: each with one or more masks.
          k: candidates of each mask, of an encoder; of other models the `beams` say how many there are, at most k.
          **keys: fields of `Options`, of models that generate.

        Returns:
          For each text and mask the candidates with their probabilities, the most likely first.

        Raises:
          UserError: a text without masks, or a model that fills none.
        """
        _check_texts("fill", texts)
        return filling.fill(self, texts, k, keys)

    def embed(
        self, texts: Sequence[str], pooling: Pooling = "mean", layer: Layer = -1, normalize: bool = False
    ) -> np.ndarray | list[np.ndarray]:
        """Embeddings of texts; see `jaxpt.decode.embed`.

        Args:
          texts: any number.
          pooling: mean, cls, last, or none: the states of all tokens.
          layer: 0 for the embeddings, 1 … for the layers; negative from the end; several of these, "all" or "mix".
          normalize: divide each vector by its L2 norm.

        Returns:
          float32 [texts, embed_dim], of several layers [texts, layers, embed_dim]; if pooling is none, an array
          [tokens, embed_dim] or [layers, tokens, embed_dim] for each text.

        Raises:
          UserError: no such layer or pooling.
        """
        _check_texts("embed", texts)
        pooled = words.pooled(self, texts, pooling, layer, normalize)
        _warn_of_truncated(pooled.truncated, "texts were truncated")
        if pooling == "none":
            return pooled.vectors
        return np.stack(pooled.vectors) if pooled.vectors else np.zeros((0, self.network.config.embed_dim), np.float32)

    def embed_words(
        self,
        texts: Sequence[str],
        layer: Layer = -1,
        unit: Literal["word", "token"] = "word",
        spans: Sequence[Spans] | None = None,
    ) -> list[Words]:
        """Vectors of the words of texts, each the mean over the tokens that have a character of it; see `words`.

        Args:
          texts: any number.
          layer: as in `embed`.
          unit: words, or the vocabulary's tokens without special ones.
          spans: (start, end) of the characters of each text's words, where they are given.

        Returns:
          For each text its words, their characters and vectors.

        Raises:
          UserError: no such layer, or a tokenizer that does not say which characters a token stands for.
        """
        _check_choice("unit", unit, ("word", "token"))
        _check_texts("embed_words", texts)
        return words.embed(self, texts, layer, unit, spans)

    def current(self) -> contextlib.AbstractContextManager[None]:
        """Makes the mesh current."""
        return self._place.use()

    def _encoded(self, prompts: Sequence[str | Prompt]) -> list[Prompt]:
        """Prompts as ids."""
        _check_texts("generate", prompts, Prompt)
        return [self.prompt_ids(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]

    def _check_writes(self) -> None:
        """Raises UserError where the model writes no text."""
        self.objective.check_writes(self.path)
        if self._engine is None:
            raise self._no_generation()

    def _no_generation(self) -> UserError:
        kind = self.network.config.kind
        if self.family != "encoder":
            return UserError(f"{self.path}: {kind}: its `decode` takes no cache, so it does not generate")
        return UserError(f"{self.path}: {kind} is an encoder: it fills masks and embeds, but does not generate")


def _check_choice(name: str, value: Any, choices: Sequence[str | None]) -> None:
    """Raises UserError for a value that is none of the choices."""
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
        raise UserError(f"{name}: {value!r} is none of {', '.join(choice for choice in choices if choice)}")


def _check_texts(name: str, texts: Any, *others: type) -> None:
    """Raises UserError where texts are no list, or an element is neither a text nor of another type that is read.

    Args:
      name: of what takes them, for messages.
      texts: as the user gave them.
      *others: types of elements beside texts.
    """
    if isinstance(texts, str):
        raise UserError(f"{name}: wants a list of texts; write [{shown(texts)}]")
    if not hasattr(texts, "__len__") or not hasattr(texts, "__iter__"):
        raise UserError(f"{name}: wants a list of texts, got {shown(texts)}")
    for number, text in enumerate(texts):
        if not isinstance(text, (str, *others)):
            raise UserError(f"{name}: element {number} is {shown(text)}; wants a text")


def _warn_of_truncated(count: int, message: str) -> None:
    if count:
        warnings.warn(f"{count} {message} to the model's positions", stacklevel=3)


@errors.noting(note)
def load(
    path: str | Path,
    *,
    tokenizer: str | Path | Tokenizer | None = None,
    mesh: Mesh | MeshConfig | None = None,
    batch_size: int = 32,
    dtype: Literal["auto", "float32", "bfloat16"] | None = None,
    objective: str | Mapping[str, Any] | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> Loaded:
    """Loads a trained model.

    Args:
      path: RUN_DIR (its newest checkpoint; of a finished run with a task the best), RUN_DIR/checkpoints/STEP, a
        Hugging Face directory, or OWNER/NAME[@REVISION] on the hub (extra [hub]).
      tokenizer: another tokenizer, or its file or directory; its special tokens and chat template are used.
      mesh: devices to shard the parameters over; by default the first device.
      batch_size: rows that are decoded at a time.
      dtype: compute dtype; by default the model's, on Hugging Face models bfloat16 on accelerators.
      objective: kind or settings of the objective that says how a text begins and ends, where the run's own, or the
        family's usual one for a Hugging Face directory, is not the right one.
      source_language: token of the language that is read, such as en_XX (mBART); by default that of the tokenizer's
        files, of a run the target language.
      target_language: token of the language that is written, such as de_DE (mBART); by default that of the model's
        files, or the only one.

    Returns:
      The model.

    Raises:
      UserError: the directory is none of these, is damaged, or has no tokenizer; or an argument is wrong.
    """
    opened = opening.open_model(path, tokenizer, objective, source_language, target_language)
    return Loaded(opened, mesh=mesh, batch_size=batch_size, dtype=dtype)
