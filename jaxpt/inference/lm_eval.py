"""EleutherAI's lm-eval on runs of all three families: its model `jaxpt`. Needs the package `lm_eval`.

    python -m jaxpt.inference.lm_eval --model_args path=RUN_DIR --tasks arc_easy,lambada_openai --limit 100

takes all options of `lm_eval`; `--model jaxpt` is added. After `import jaxpt.inference.lm_eval`, `simple_evaluate` and
`get_model` know the model too. lm-eval refuses encoders; here they are scored by pseudo-log-likelihood.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

try:
    from lm_eval import utils
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ModuleNotFoundError as error:
    if __name__ != "__main__":
        raise
    print(f"jaxpt: the Python package {error.name!r} is not installed; pip install lm_eval", file=sys.stderr)
    raise SystemExit(2) from None

from jaxpt.data import chat_template as templates
from jaxpt.data.chat_template import ChatTemplate, Message
from jaxpt.data.tasks.dialogue import with_system
from jaxpt.errors import UserError
from jaxpt.evals.few_shot.scoring import LoglikelihoodResult
from jaxpt.inference import dialogue, evaluate, loaded

_LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names of the limit of new tokens, the first that is given counts."""
_OPTIONS = {"top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "repetition_penalty": "repetition_penalty",
            "num_beams": "beams", "length_penalty": "length_penalty"}  # fmt: skip
"""lm-eval's name of an option → that of `jaxpt.decode.options.Options`."""
_NEW_TOKENS = 256
"""lm-eval's default."""
_ROWS = 32
"""Rows that are generated at a time by default; lm-eval's default is one."""
_END = "8d1f end"  # a text that no template has


@register_model("jaxpt")
class JaxptLM(LM):
    """A trained model for lm-eval's tasks."""

    def __init__(
        self,
        path: str,
        form: Literal["plain", "span"] | None = None,
        unit: Literal["piece", "word"] | None = None,
        batch_size: int | str | None = None,
        dtype: Literal["auto", "float32", "bfloat16"] | None = None,
        **ignored: Any,
    ) -> None:
        """Loads the model.

        Args:
          path: RUN_DIR, RUN_DIR/checkpoints/STEP or HF_DIR.
          form: of an encoder-decoder: the target, or a missing span; by default as it was pretrained.
          unit: of an encoder: mask one token (`piece`, the default), or the later ones of its word too (`word`).
          batch_size: rows that are generated at a time; batches of likelihoods have a number of tokens.
          dtype: compute dtype.
          **ignored: what lm-eval gives to every model: `device`, `max_batch_size`, `trust_remote_code`.

        Raises:
          UserError: an unknown argument, one that has no effect on the model, or as `jaxpt.load`.
        """
        super().__init__()
        for name in ignored.keys() - {"device", "max_batch_size", "trust_remote_code"}:
            raise UserError(f"--model_args: {name}: wants path, form, unit, batch_size or dtype")
        if form not in (None, "plain", "span") or unit not in (None, "piece", "word"):
            raise UserError(f"--model_args: form={form}, unit={unit}: form is plain or span, unit piece or word")
        rows = int(batch_size) if str(batch_size).isdecimal() else _ROWS  # not `auto`
        self._loaded = loaded.load(path, batch_size=rows, dtype=dtype)
        self._template: ChatTemplate | None = None
        try:
            self._asks = evaluate.make_adapter(self._loaded, form, unit)
        except UserError as error:
            raise UserError(f"--model_args: {error}") from None
        self._asks.check_settings()

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> JaxptLM:
        """The model of --model_args, which count before lm-eval's options (`--batch_size`).

        Raises:
          UserError: as `JaxptLM`, or there is no path.
        """
        if "path" not in arg_dict:
            raise UserError("--model_args: path is missing; wants path=RUN_DIR")
        return cls(**{**(additional_config or {}), **arg_dict})

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: Mapping[str, Any] | None = None) -> JaxptLM:
        """As `create_from_arg_obj`, of "key=value,key=value"."""
        return cls.create_from_arg_obj(utils.simple_parse_args_string(arg_string), additional_config)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(Σ log p, whether each token is the first choice) of each (context, continuation)."""
        likelihoods = self._asks.likelihoods(*_columns(requests, 2))
        return self._kept("loglikelihood", requests, [_answer(likelihood) for likelihood in likelihoods])

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Σ log p of each text, each token once."""
        likelihoods = self._asks.rolling(*_columns(requests, 1))
        return self._kept("loglikelihood_rolling", requests, [likelihood.log_prob for likelihood in likelihoods])

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """A text for each (prompt, options); requests of the same options are generated together."""
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(repr(request.args[1]), []).append(number)
        texts = [""] * len(requests)
        for numbers in groups.values():
            keys = _options(requests[numbers[0]].args[1])
            prompts = self._asks.prompts([requests[i].args[0] for i in numbers], keys["max_new_tokens"])
            if self._template is None:
                options = self._loaded.options(**keys)
            else:
                options = dialogue.answer_options(self._loaded, self._template, keys)
            for number, samples in self._loaded.generate_iter(prompts, options):
                texts[numbers[number]] = samples[0].text if samples else ""
        return self._kept("generate_until", requests, texts)

    @property
    def tokenizer_name(self) -> str:
        """Part of the name of lm-eval's cache of requests."""
        return str(self._loaded.path).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Chooses the tokenizer's chat template, before `apply_chat_template`.

        Args:
          chat_template: True, or the template's name where a tokenizer has several; False: none.

        Returns:
          Its Jinja.

        Raises:
          UserError: there is none of this name.
        """
        if not chat_template:
            return None
        name, known = "default" if chat_template is True else chat_template, self._loaded.tokenizer.chat_templates
        if name not in known:
            names = ", ".join(known) or "none"
            raise UserError(
                f"--apply_chat_template: {self._loaded.path}: no template {name!r}, the tokenizer has {names}"
            )
        self._template = templates.load(self._loaded.tokenizer, name=name)
        return known[name]

    def apply_chat_template(self, chat_history: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """A dialogue as text, BOS included, which is not put before it again.

        Args:
          chat_history: [{"role", "content"}, …], the oldest first; a run's own system message (`task.system`) stands
            before it where it has none.
          add_generation_prompt: the assistant's next message begins at the end; False: its last one goes on there.

        Raises:
          UserError: there is no template, or it does not take this dialogue.
        """
        if self._template is None:
            self.chat_template(True)
        try:
            return _rendered(self._template, with_system(chat_history, self._loaded.system), add_generation_prompt)
        except UserError:  # as lm-eval's own models
            others = [message for message in chat_history if message["role"] != "system"]
            if len(others) == len(chat_history):
                raise
            text = _rendered(self._template, others, add_generation_prompt)
        warnings.warn("the chat template takes no system message, which is left out", stacklevel=2)
        return text

    def _kept(self, name: str, requests: list[Instance], answers: list[Any]) -> list[Any]:
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial(name, request.args, answer)
        return answers


def _rendered(template: ChatTemplate, messages: Sequence[Message], add_generation_prompt: bool) -> str:
    """A dialogue as text; without a generation prompt it ends with the last message's text, which is continued."""
    if add_generation_prompt:
        return template.render(messages)
    *before, last = messages
    text = template.render([*before, {**last, "content": last["content"] + _END}], add_generation_prompt=False)
    begun, end, _ = text.rpartition(_END)
    if not end:
        raise UserError(f"{template.name}: leaves out the end of the last message, which is to be continued")
    return begun


def _columns(requests: Sequence[Instance], count: int) -> list[list[str]]:
    return [[request.args[i] for request in requests] for i in range(count)]


def _answer(likelihood: LoglikelihoodResult) -> tuple[float, bool]:
    return likelihood.log_prob, likelihood.is_greedy


def _options(generation_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """lm-eval's options of generation as fields of `jaxpt.decode.options.Options`."""
    left = dict(generation_kwargs)
    until = left.pop("until", None) or []
    limits = [int(limit) for name in _LIMITS if (limit := left.pop(name, None)) is not None]
    samples, temperature = left.pop("do_sample", None), left.pop("temperature", None)
    if samples is False or (samples is None and not temperature):
        temperature = 0.0
    if temperature == 0:  # as in Transformers, filters of a draw then do nothing
        left = {name: value for name, value in left.items() if name not in ("top_k", "top_p", "min_p")}
    options: dict[str, Any] = {
        "stop": tuple(stop for stop in ([until] if isinstance(until, str) else until) if stop),
        "max_new_tokens": limits[0] if limits else _NEW_TOKENS,
        "temperature": 1.0 if temperature is None else float(temperature),
    }
    for name, value in left.items():
        if name not in _OPTIONS:
            known = ", ".join(["until", "do_sample", "temperature", *_LIMITS, *_OPTIONS])
            raise UserError(f"generation_kwargs: {name}: wants {known}")
        options[_OPTIONS[name]] = value
    return options


def main() -> int:
    """Runs lm-eval's command with the model `jaxpt`.

    Returns:
      0, or 2 for a user error, which is printed in one line.
    """
    from lm_eval.__main__ import cli_evaluate

    if len(sys.argv) == 1 or sys.argv[1].startswith("-"):
        sys.argv.insert(1, "run")
    if sys.argv[1] == "run":  # defaults: of an option that is given again, the last one counts
        has_file = any(argument.startswith(("--config", "-C")) for argument in sys.argv)  # it may have a batch size
        sys.argv[2:2] = ["--model", "jaxpt", *([] if has_file else ["--batch_size", str(_ROWS)])]
    try:
        cli_evaluate()
    except UserError as error:
        print(f"jaxpt: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
