"""`jaxpt generate`: text by decoders and encoder-decoders; filled masks and spans where a prompt has them.

--prompt, stdin     answers on stdout, in the order of the prompts; with --stream while they are generated
--file F --out G    G.jsonl has the rows of F with the answers; re-run the same command to resume
--compare OTHER     the answers of two models beside each other
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from jaxpt import errors
from jaxpt.decode.options import Options
from jaxpt.errors import UserError
from jaxpt.inference import files, outside
from jaxpt.inference.answers import Answer, Answers, Texts
from jaxpt.runtime.progress import progress

Item = TypeVar("Item")

CHUNK = 4
"""Batches of a file that are generated together. Rows wait in memory for those before them, and a killed process
loses no more than these; a resume generates them together again, so that its numbers are the same."""


def generate(
    path: str,
    *,
    prompts: Sequence[str] = (),
    file: str | None = None,
    out: str | None = None,
    field: str | None = None,
    compare: str | None = None,
    stream: bool = False,
    batch_size: int = 32,
    source_language: str | None = None,
    target_language: str | None = None,
    **settings: Any,
) -> None:
    """Answers prompts.

    Args:
      path: RUN_DIR or HF_DIR.
      prompts: texts; without them and `file`, the lines of stdin.
      file: a file of prompts (`files.read_prompts`).
      out: the file of results.
      field: the field of `file` with the prompt ("prompt").
      compare: another RUN_DIR or HF_DIR.
      stream: show the text while it is generated.
      batch_size: rows generated at a time.
      source_language: token of the language that is read, as of `jaxpt.load`.
      target_language: token of the language that is written.
      **settings: of `Options`.

    Raises:
      UserError: the arguments, a prompt, a file or a model are not as they must be.
    """
    _check(prompts, file, out, field, compare, stream, settings)
    field = field or "prompt"
    rows = files.read_prompts(file, field) if file else [{field: text} for text in prompts or _lines_of_stdin()]
    texts = [row[field] for row in rows]
    if out:
        files.check_unused(Path(out))
    languages = {"source_language": source_language, "target_language": target_language}
    languages = {key: name for key, name in languages.items() if name is not None}
    models = [Answers(name, settings, batch_size, **languages) for name in (path, compare) if name is not None]
    for model in models:
        model.check(texts, f"{file}: row" if file else "prompt")
    if out:
        numbered = {f"model {n}": model.identity for n, model in enumerate(models, 1)}
        identity = {**numbered, "field": field, **languages, **settings}
        _write(models, rows, texts, Path(out), identity, CHUNK * batch_size)
    elif compare:
        _print_columns(models, texts)
    elif stream:
        _print_stream(models[0], texts)
    else:
        for text, answer in zip(texts, _in_order(models[0].answers(texts))):
            _print(text if len(texts) > 1 else None, answer.lines())
            note_blank(answer)


def _check(
    prompts: Sequence[str], file: str | None, out: str | None, field: str | None, compare: str | None, stream: bool,
    settings: Mapping[str, Any],
) -> None:  # fmt: skip
    """Refuses arguments that exclude each other, before a model is loaded."""
    wrong = {
        "--file and --prompt: give one of them": file and prompts,
        "--file needs --out G.jsonl, for the results": file and not out,
        "--out is for the results of --file: give that too": out and not file,
        "--field is for --file F.jsonl: give both": field and not file,
        "--stream shows text on the screen: leave out --file": stream and file,
        "--stream shows one model's text: leave out --compare": stream and compare,
        "--stream shows text that no later token changes, and beams change it: leave out --beams": (
            stream and settings.get("beams", 1) > 1
        ),
    }
    for line, is_wrong in wrong.items():
        if is_wrong:
            raise UserError(line)
    if out and Path(out).suffix != ".jsonl":
        raise UserError(f"--out: {out}: unknown suffix {Path(out).suffix!r}; expected .jsonl")
    for text in prompts:
        outside.check_utf_8(text, "--prompt")
    for text in settings.get("stop") or ():
        outside.check_utf_8(text, "--stop")
    # Encoders take top_k without a temperature: as the number of candidates.
    Options(**{name: value for name, value in settings.items() if name != "top_k" or settings.get("temperature")})


def _lines_of_stdin() -> list[str]:
    if sys.stdin is None or sys.stdin.isatty():
        raise UserError("no prompt: give --prompt TEXT, --file F.jsonl --out G.jsonl, or lines on stdin")
    lines = [line.rstrip("\r\n") for line in outside.lines_of_stdin()]
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise UserError("stdin: is empty; wants one prompt a line, or --prompt TEXT")
    return lines


# ---- files ----------------------------------------------------------------------------------------------------------


def _write(
    models: Sequence[Answers],
    rows: Sequence[files.Row],
    texts: Sequence[str],
    out: Path,
    identity: Mapping[str, Any],
    chunk: int,
) -> None:
    """Writes a file of results; one that is there in part is completed."""
    adds = [_field(n, name) for n, model in enumerate(models) for name in model.fields(texts)]
    empty: dict[str, Any] = dict.fromkeys(adds)
    with progress(None, "generating") as say, files.ResumableJsonl(out, rows, identity, adds, say) as results:
        for start in range(results.done // chunk * chunk, len(rows), chunk):
            part, done = texts[start : start + chunk], results.done
            others = [dict(model.answers(part, first=start)) for model in models[1:]]
            for i, answer in models[0].answers(part, first=start):
                if start + i < done:  # written by the process before
                    continue
                values = dict(empty)
                for n, each in enumerate((answer, *(other[i] for other in others))):
                    values |= {_field(n, name): value for name, value in each.values().items()}
                results.write(start + i, files.without_nan(values))
    print(results.close())


def _field(model: int, name: str) -> str:
    return f"other_{name}" if model else name


# ---- the screen -----------------------------------------------------------------------------------------------------


def _in_order(pairs: Iterator[tuple[int, Item]]) -> Iterator[Item]:
    """What comes with the numbers 0, 1, … in any order, in their order."""
    waiting: dict[int, Item] = {}
    at = 0
    for i, item in pairs:
        waiting[i] = item
        while at in waiting:
            yield waiting.pop(at)
            at += 1


def _print(prompt: str | None, lines: Sequence[str]) -> None:
    """The answer to a prompt; several prompts are shown above their answers."""
    if prompt is not None:
        print(f"> {prompt}")
    print("\n".join(lines), flush=True)


def _print_columns(models: Sequence[Answers], texts: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=True)
    for name in ("prompt", *(model.name for model in models)):
        table.add_column(Text(name), ratio=1, overflow="fold")
    for text, *answers in zip(texts, *(_in_order(model.answers(texts)) for model in models)):
        table.add_row(Text(text), *(Text("\n".join(answer.lines())) for answer in answers))
    Console(highlight=False).print(table)


def _print_stream(model: Answers, texts: Sequence[str]) -> None:
    screen = _Screen(texts, [model.count(text) for text in texts])
    for i, answer in model.answers(texts, on_text=screen.add):
        screen.end(i, answer)
        note_blank(answer)


def note_blank(answer: Answer) -> None:
    """Says of a text that cannot be seen what it is, on standard error.

    Args:
      answer: what is shown.
    """
    if isinstance(answer, Texts) and not answer.completions:
        errors.note("beam search found no continuation within these options")
    for completion in answer.completions if isinstance(answer, Texts) else ():
        if completion.finish == "banned":
            count = len(completion.tokens)
            errors.note(f"a continuation ends after {count} tokens: these options ban every token that could follow")
        elif not completion.text:
            reason = {"stop": "a stop string came first", "eos": "the end token came first"}.get(
                completion.finish, f"its {len(completion.tokens)} tokens have no text"
            )
            errors.note(f"a continuation is empty: {reason}")
        elif completion.text.isspace():
            errors.note(f"a continuation is white space alone: {completion.text!r}")


class _Screen:
    """Shows the first text that is not complete while it comes; pieces of later ones wait."""

    def __init__(self, texts: Sequence[str], counts: Sequence[int]) -> None:
        """Takes the prompts, and the number of texts that each gets."""
        self._texts, self._counts = texts, counts
        self._keys = collections.deque((i, sample) for i, count in enumerate(counts) for sample in range(count))
        self._pieces: dict[tuple[int, int], str] = {
            key: ("\n" if key[1] else "") + self._head(*key) for key in self._keys
        }
        self._ended: set[int] = set()
        self._show()

    def add(self, i: int, sample: int, piece: str) -> None:
        """Takes the next piece of a text."""
        self._pieces[i, sample] += piece
        self._show()

    def end(self, i: int, answer: Answer) -> None:
        """Takes the answer to a prompt; of generated text all pieces were added."""
        if not answer.is_streamed:
            self._pieces[i, 0] += "\n".join(answer.lines())
        self._ended.add(i)
        self._show()

    def _head(self, i: int, sample: int) -> str:
        prompt = f"> {self._texts[i]}\n" if len(self._texts) > 1 and not sample else ""
        return prompt + (f"{sample + 1}: " if self._counts[i] > 1 else "")

    def _show(self) -> None:
        while self._keys:
            i, sample = self._keys[0]
            print(self._pieces[i, sample], end="", flush=True)
            self._pieces[i, sample] = ""
            if i not in self._ended:
                return  # samples of a prompt end together
            self._keys.popleft()
            if sample + 1 == self._counts[i]:
                print(flush=True)
