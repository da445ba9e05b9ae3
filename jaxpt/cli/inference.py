"""The commands that use a trained model: text, labels, dialogue and vectors. Each imports what it runs."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxpt.cli.parsing import add_overrides, command, count, index
from jaxpt.decode.options import Options
from jaxpt.errors import UserError


def add(commands: Any) -> None:
    """Adds the commands.

    Args:
      commands: the subparsers.
    """
    generate = command(commands, "generate", _generate, "generate text; fill masks and spans", (
        "runs/gpt2_tiny --prompt 'Once upon a time' --stream",
        "runs/gpt2_tiny --prompt 'The cat' --temperature 0.8 --top-p 0.95 --samples 3",
        "runs/bert_tiny --prompt 'The [MASK] sat on the mat.'",
        "runs/t5_tiny --prompt 'The <extra_id_0> sat on the <extra_id_1>.'",
        "runs/t5_tiny --file prompts.jsonl --out answers.jsonl --beams 4  # re-run to resume",
        "runs/gpt2_tiny --prompt 'The cat' --eos 0,198       # ends with any of these ids",
        "runs/gpt2_tiny --compare runs/other --prompt 'The cat'",
    ))  # fmt: skip
    generate.add_argument("path", metavar="RUN_DIR|HF_DIR", help="a run, RUN_DIR/checkpoints/STEP, or a model")
    generate.add_argument(
        "--prompt", metavar="TEXT", action="append", default=[], help="a prompt; without one, the lines of stdin"
    )
    generate.add_argument(
        "--file", metavar="F", help="prompts: .jsonl, .tsv, …, or .txt with a prompt a line; also .gz"
    )
    generate.add_argument("--out", metavar="G", help="the .jsonl with the rows of F and what was generated")
    generate.add_argument("--field", metavar="NAME", help="field of F with the prompt (prompt)")
    _options(generate)
    generate.add_argument("--stream", action="store_true", help="show text while it is generated")
    generate.add_argument("--batch-size", type=count, default=32, metavar="N", help="rows generated at a time (32)")
    generate.add_argument("--compare", metavar="OTHER", help="a second model, side by side")

    predict = command(commands, "predict", _predict, "label the rows of a file with a fine-tuned model", (
        "runs/sst2 test.tsv --out predictions.jsonl",
        "runs/sst2/checkpoints/500 reviews.csv --out predictions.jsonl task.text=review",
        "runs/mnli test_mismatched.tsv --glue --out submission    # MNLI-mm.tsv",
        "runs/squad questions.json --out predictions.jsonl task.nbest=5",
    ))  # fmt: skip
    predict.add_argument("path", metavar="RUN_DIR", help="a fine-tuned run, or RUN_DIR/checkpoints/STEP")
    predict.add_argument("file", metavar="FILE", help="rows as in training, without labels")
    predict.add_argument("--out", metavar="P.jsonl", required=True, help="the file to write, a line for each row")
    predict.add_argument("--glue", action="store_true", help="write GLUE's submission: --out DIR, or FILE.tsv")
    add_overrides(predict, "overrides a key of the run's recipe")

    chat = command(commands, "chat", _chat, "talk with a dialogue model, by its chat template", (
        "runs/llama3_instruct",
        "runs/llama3_instruct --system 'Answer in one sentence.' --temperature 0.7",
        "runs/gpt2_tiny --template chat_template.jinja",
    ))  # fmt: skip
    chat.add_argument("path", metavar="RUN_DIR|HF_DIR", help="a run, RUN_DIR/checkpoints/STEP, or a model")
    chat.add_argument("--system", metavar="TEXT", help="the system message")
    chat.add_argument("--template", metavar="FILE", help="a chat template (Jinja) instead of the tokenizer's")
    _options(chat, without=("beams", "length_penalty", "early_stopping", "samples"))
    _embeddings(commands)


def _embeddings(commands: Any) -> None:
    embed = command(commands, "embed", _embed, "write the vectors of texts, words or tokens as Parquet", (
        "runs/bert_tiny texts.txt --out vectors.parquet    # of each line: mean of its tokens",
        "runs/bert_tiny reviews.jsonl --field review --layer mix --out reviews.parquet",
        "runs/gpt2_tiny texts.txt.gz --pool last --normalize --out vectors.parquet",
        "runs/bert_tiny dev.conllu --pool word --layer 0,2 --out w.parquet  # layer_0, layer_2",
    ))  # fmt: skip
    embed.add_argument("path", metavar="RUN_DIR|HF_DIR", help="a run, RUN_DIR/checkpoints/STEP, or a model")
    embed.add_argument("file", metavar="FILE", help=".txt with a text a line, .jsonl, .tsv, .conllu, …; also .gz")
    embed.add_argument("--out", metavar="F.parquet", required=True, help="the file to write")
    embed.add_argument("--field", metavar="NAME", help="column of FILE with the text, or a list of words (text)")
    _layer(embed, "0: embeddings, 1 … N: layers, -1: the last (-1); several: 0,6,12; all; mix: mean of all")
    embed.add_argument(
        "--pool", choices=("mean", "cls", "last", "word", "token"), default="mean",
        help="mean, cls, last: a vector for each text; word, token: one for each of these (mean)",
    )  # fmt: skip
    embed.add_argument("--normalize", action="store_true", help="divide each vector by its L2 norm")

    near = command(commands, "neighbours", _neighbours, "find the nearest uses of a word in context", (
        "runs/bert_tiny 'the *bank* of the river' --corpus texts.txt",
        "runs/bert_tiny 'we play here' --word play --corpus wiki.jsonl.gz --html play.html",
        "runs/bert_tiny --corpus senses.jsonl --label sense --layer all  # its accuracy",
        "glove.6B.100d.txt bank --png bank.png        # static vectors: the nearest words",
    ))  # fmt: skip
    near.add_argument("path", metavar="RUN_DIR|HF_DIR|VECTORS", help="a run, a model, or word vectors in text format")
    near.add_argument("query", metavar="TEXT", nargs="?", help="a sentence with *asterisks* around the word")
    near.add_argument("--word", help="the word of the sentence, instead of asterisks")
    near.add_argument("--corpus", metavar="FILE", help="texts with uses of the word; as FILE of jaxpt embed")
    near.add_argument("--field", metavar="NAME", help="column of FILE with the text (text)")
    near.add_argument("--label", metavar="NAME", help="column of FILE with a label of each text, such as a sense")
    _layer(near, "0: embeddings, 1 … N: layers, -1: the last (-1); mix: mean of all; labels alone: all")
    near.add_argument("-k", type=count, metavar="K", help="number of neighbours (10); labels alone: that vote (3)")
    near.add_argument("--limit", type=count, default=10_000, metavar="N", help="uses that are looked at (10,000)")
    near.add_argument("--html", metavar="F.html", help="write a page with a picture of the vectors and the uses")
    near.add_argument("--png", metavar="F.png", help="write the picture")

    sts = command(commands, "sts", _sts, "correlate the cosine of sentence vectors with people's scores", (
        "runs/bert_tiny STS-B/dev.tsv --pool mean,cls                   # each layer",
        "runs/gpt2_tiny sick.csv --columns sentence_A,sentence_B,score --layer -1 --pool last",
        "glove.6B.100d.txt STS-B/dev.tsv                # static vectors: the mean of the words",
    ))  # fmt: skip
    sts.add_argument("path", metavar="RUN_DIR|HF_DIR|VECTORS", help="a run, a model, or word vectors in text format")
    sts.add_argument("file", metavar="FILE", help="pairs of sentences with a score: .tsv, .csv, .jsonl, …; also .gz")
    sts.add_argument("--layer", default="all", metavar="N", help="as jaxpt embed (all)")
    sts.add_argument("--pool", default="mean", metavar="NAMES", help="mean, cls or last, several with commas (mean)")
    columns = "the columns of the sentences and the score (sentence1,sentence2,score)"
    sts.add_argument("--columns", default="sentence1,sentence2,score", metavar="A,B,SCORE", help=columns)


def _layer(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--layer", default="-1", metavar="N", help=text)


def _options(parser: argparse.ArgumentParser, without: Sequence[str] = ()) -> None:
    """Adds a flag for each field of `Options` that has one."""
    for field in dataclasses.fields(Options):
        flag, known = f"--{field.name.replace('_', '-')}", field.metadata
        if known["help"] and field.name not in without:
            how = {"type": known["rule"].parse} if hasattr(known["rule"], "parse") else {"action": "append"}
            parser.add_argument(flag, metavar=known["placeholder"], help=known["help"], **how)


_OF_TASKS = ("shots", "seed", "limit", "data", "out", "corpus", "form", "unit", "dtype")


def add_task_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `jaxpt eval --tasks`.

    Args:
      parser: of `eval`.
    """
    add = parser.add_argument_group("tasks").add_argument
    add("--tasks", type=_words, metavar="A,B", help="names of tasks (configs/tasks), or their files")
    add("--shots", type=_numbers, metavar="0,5", help="numbers of examples shown before each (each task's own)")
    add("--seed", type=index, metavar="N", help="of the examples that are shown (0)")
    add("--limit", type=count, metavar="N", help="the first N examples of each task; of pairs, of each group")
    add("--data", metavar="DIR", help="where the tasks' files are")
    add(
        "--out",
        metavar="DIR",
        help="where results go (PATH/harness; of RUN_DIR/checkpoints/STEP RUN_DIR/harness/STEP); re-run to resume",
    )
    add("--corpus", metavar="FILE", help="text of the n-gram baseline: .txt, or .jsonl with a field text")
    add("--form", choices=("plain", "span"), help="encoder-decoders: the target, or a missing span (as pretrained)")
    add("--unit", choices=("piece", "word"), help="encoders: mask one token, or the later ones of its word too (piece)")
    add("--dtype", choices=("auto", "float32", "bfloat16"), help="compute dtype (the model's)")


def evaluate_tasks(arguments: argparse.Namespace) -> None:
    """Runs `jaxpt eval --tasks`."""
    from jaxpt.inference.evaluate import evaluate

    options = {name: getattr(arguments, name) for name in _OF_TASKS if getattr(arguments, name) is not None}
    evaluate(arguments.path, arguments.tasks, overrides=arguments.overrides, **options)


def refuse_without_tasks(arguments: argparse.Namespace) -> None:
    """Raises UserError for an option of tasks where there are none."""
    if name := next((name for name in _OF_TASKS if getattr(arguments, name) is not None), None):
        raise UserError(f"--{name}: is for --tasks: give both")


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _numbers(text: str) -> list[int]:
    if not all(word.isdecimal() for word in text.split(",")):
        raise argparse.ArgumentTypeError(f"expected numbers such as 0,5, got {text!r}")
    return [int(word) for word in text.split(",")]


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given."""
    values = {field.name: getattr(arguments, field.name, None) for field in dataclasses.fields(Options)}
    return {name: value for name, value in values.items() if value is not None}


def _generate(arguments: argparse.Namespace) -> None:
    from jaxpt.inference.command import generate

    names = ("file", "out", "field", "compare", "stream", "batch_size")
    options = {name: getattr(arguments, name) for name in names}
    generate(arguments.path, prompts=arguments.prompt, **options, settings=_given(arguments))


def _predict(arguments: argparse.Namespace) -> None:
    from jaxpt.inference.predict import predict

    predict(arguments.path, arguments.file, arguments.out, arguments.overrides, arguments.glue)


def _chat(arguments: argparse.Namespace) -> None:
    from jaxpt.inference.chat import chat

    chat(arguments.path, system=arguments.system, template=arguments.template, settings=_given(arguments))


def _embed(arguments: argparse.Namespace) -> None:
    from jaxpt.inference.embed_file import embed_file

    names = ("layer", "pool", "field", "normalize")
    embed_file(arguments.path, arguments.file, arguments.out, **{name: getattr(arguments, name) for name in names})


def _neighbours(arguments: argparse.Namespace) -> None:
    from jaxpt.inference.neighbours import neighbours
    from jaxpt.report.points import draw

    names = ("word", "corpus", "field", "label", "layer", "k", "limit", "html", "png")
    nearest = neighbours(arguments.path, arguments.query, **{name: getattr(arguments, name) for name in names})
    if nearest and (arguments.html or arguments.png):
        draw(nearest, arguments.html, arguments.png)


def _sts(arguments: argparse.Namespace) -> None:
    from jaxpt.inference.sts import sts

    names = ("layer", "pool", "columns")
    sts(arguments.path, arguments.file, **{name: getattr(arguments, name) for name in names})
