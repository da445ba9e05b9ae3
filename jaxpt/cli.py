"""The command line: parse, call, print errors.

Commands import what they need when they run, so that `jaxpt --help` answers at once. A mistake of the user's is one
line on stderr and exit code 2; `--debug` shows the traceback behind it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from jaxpt import signals
from jaxpt.errors import UserError

Command = Callable[[argparse.Namespace], int | None]


def start() -> NoReturn:
    """The program: runs the command that `sys.argv` names and exits."""
    signals.start()
    signals.finish(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
      argv: the arguments, without the program's name; `sys.argv[1:]` by default.

    Returns:
      The exit code: 0, 2 for a mistake of the user's, 128 + the signal's number when stopped by one.
    """
    arguments = _parse(sys.argv[1:] if argv is None else argv)
    if not sys.flags.safe_path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a recipe may name modules of the current directory
    try:
        with signals.watch():
            return arguments.run(arguments) or 0
    except (UserError, OSError, ModuleNotFoundError) as error:
        if arguments.debug or _internal(error):
            raise
        if isinstance(error, BrokenPipeError):  # `jaxpt schema | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        print(f"jaxpt: {_line(error)}", file=sys.stderr)
        return 2


def _internal(error: Exception) -> bool:
    """Whether a missing module is one of ours: a defect, not a package that wants installing."""
    return isinstance(error, ModuleNotFoundError) and (error.name or "jaxpt").split(".")[0] == "jaxpt"


def _line(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"the Python package {error.name!r} is not installed; `jaxpt doctor` shows what is missing"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def _note(line: str) -> None:
    """Says what of a recipe was dropped."""
    print(f"jaxpt: note: {line}", file=sys.stderr)


# ---- commands -------------------------------------------------------------------------------------------------------


def _train(arguments: argparse.Namespace) -> int:
    from jaxpt.config import load

    config = load(arguments.config, arguments.overrides, report=_note)  # before anything slow is imported
    from jaxpt.train.loop import train

    return train(config)


def _eval(arguments: argparse.Namespace) -> None:
    from jaxpt.evals.command import evaluate

    evaluate(arguments.path, arguments.overrides)


def _inspect(arguments: argparse.Namespace) -> None:
    from jaxpt.config import load
    from jaxpt.report.inspect import inspect

    config = load(arguments.config, arguments.overrides, report=_note)
    inspect(
        config,
        count=arguments.n,
        at=arguments.at,
        split=arguments.split,
        phase=arguments.phase,
        html=arguments.html,
    )


def _plan(arguments: argparse.Namespace) -> None:
    from jaxpt.config import load

    config = load(arguments.config, arguments.overrides, report=_note)
    from jaxpt.plan.command import Assumptions, plan

    given = {name: getattr(arguments, name) for name in ("price", "watts", "carbon")}
    plan(
        config,
        arguments.topology,
        arguments.slices,
        as_json=arguments.json,
        shardings=arguments.shardings,
        searching=arguments.search,
        assumptions=Assumptions(**{name: value for name, value in given.items() if value is not None}),
        save=arguments.save,
    )


def _cache(arguments: argparse.Namespace) -> None:
    from jaxpt.config import load
    from jaxpt.report.caches import cache

    config = load(arguments.config, arguments.overrides, report=_note)
    cache(config, arguments.workers, arguments.verify, arguments.beam)


def _study(arguments: argparse.Namespace) -> int:
    from jaxpt.study import study

    return study(arguments.study, arguments.overrides, table=arguments.table, stop=arguments.stop)


def _probe(arguments: argparse.Namespace) -> None:
    from jaxpt.config.studies import load_probe

    settings = load_probe(arguments.overrides)
    from jaxpt.evals.probe import probe

    probe(arguments.run_dir, settings)


def _tokenizer_train(arguments: argparse.Namespace) -> None:
    from jaxpt.config import load
    from jaxpt.report.tokenizers import train

    train(load(arguments.config, arguments.overrides, report=_note), arguments.out)


def _tokenizer_inspect(arguments: argparse.Namespace) -> None:
    from jaxpt.report.tokenizers import inspect

    inspect(arguments.path, arguments.text)


def _import(arguments: argparse.Namespace) -> None:
    from jaxpt.convert import import_weights

    import_weights(
        arguments.source, arguments.out, check=arguments.verify, partial=arguments.partial, ignore=arguments.ignore,
        tokenizer=arguments.tokenizer,
    )  # fmt: skip


def _export(arguments: argparse.Namespace) -> None:
    from jaxpt.convert import export

    size = None if arguments.shard_gb is None else int(arguments.shard_gb * 1e9)
    export(arguments.run_dir, arguments.out, check=arguments.verify, dtype=arguments.dtype, shard_bytes=size)


def _doctor(arguments: argparse.Namespace) -> int:
    from jaxpt.doctor import doctor

    return doctor()


def _schema(arguments: argparse.Namespace) -> None:
    import json

    from jaxpt.config import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))


# ---- parsing --------------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Says what was wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    # argparse takes positional arguments in one run only: overrides after an option are left over.
    arguments, rest = parser.parse_known_args(argv)
    for word in rest:
        if word.startswith("-") or "overrides" not in arguments:
            parser.error(f"{arguments.command}: unknown argument {word!r}")
    if rest:
        arguments.overrides += rest
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="jaxpt",
        description="Pretrain encoders, decoders and encoder-decoders with JAX: raw text in, a trained model out.",
        epilog="examples:\n"
        "  jaxpt doctor\n"
        "  jaxpt inspect configs/smoke/bert_tiny.yaml\n"
        "  jaxpt train configs/smoke/gpt2_tiny.yaml train.steps=200\n\n"
        "Each command has its own: jaxpt COMMAND --help. A key=value argument overrides that key of the recipe.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version)
    _debug(parser, False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    train = _command(commands, "train", _train, "pretrain; continues where a run stopped", (
        "configs/smoke/bert_tiny.yaml",
        "configs/smoke/gpt2_tiny.yaml train.steps=200 optimizer.learning_rate=0.01 run_dir=runs/try",
        "runs/try train.steps=400                # a run directory is a recipe too",
        "configs/smoke/bert_tiny.yaml 'train.phases=[]' data.length=48 data.batch_size=8",
    ))  # fmt: skip
    _recipe(train)

    evaluate = _command(commands, "eval", _eval, "held-out loss of a run, next to a trivial baseline", (
        "runs/bert_tiny",
        "configs/smoke/bert_tiny.yaml train.eval_examples=1000",
    ))  # fmt: skip
    evaluate.add_argument("path", metavar="CONFIG|RUN_DIR", help="a recipe, or the directory of a run")
    _overrides(evaluate)

    inspect = _command(commands, "inspect", _inspect, "what the model will see: tokens, masks, spans, padding", (
        "configs/smoke/bert_tiny.yaml",
        "configs/smoke/t5_tiny.yaml -n 3 --at 1000 --html batches.html",
        "configs/smoke/gpt2_tiny.yaml --split validation data.length=64",
    ))  # fmt: skip
    _recipe(inspect)
    inspect.add_argument("-n", type=_count, default=8, metavar="N", help="how many examples (8)")
    inspect.add_argument("--at", type=_index, default=0, metavar="INDEX", help="index of the first in the stream (0)")
    inspect.add_argument("--split", choices=("train", "validation"), default="train", help="which split (train)")
    inspect.add_argument("--phase", type=_count, default=1, metavar="N", help="which phase of the recipe, from 1 (1)")
    inspect.add_argument("--html", metavar="FILE", help="write a page instead of printing")

    _planning(commands)

    cache = _command(commands, "cache", _cache, "make a recipe's records ahead of its run, in parallel; check them", (
        "configs/smoke/bert_tiny.yaml --workers 8",
        "configs/smoke/bert_tiny.yaml --verify     # read every file; damaged ones are made again",
        "configs/smoke/bert_tiny.yaml --beam='--runner=FlinkRunner --flink_master=…' data.cache_dir=/mnt/shared",
    ))  # fmt: skip
    _recipe(cache)
    cache.add_argument("--workers", type=_count, metavar="N", help="processes (one for each core)")
    cache.add_argument("--beam", metavar="OPTIONS", help="Apache Beam makes them: '--runner=DataflowRunner …'")
    cache.add_argument("--verify", action="store_true", help="compare the checksums of all files, however large")

    probe = _command(commands, "probe", _probe, "labels read off a frozen model by a linear classifier", (
        "runs/bert_tiny path=train.csv.gz test_path=test.csv.gz text=text label=category",
    ))  # fmt: skip
    probe.add_argument("run_dir", metavar="RUN_DIR", help="a run, or RUN_DIR/checkpoints/STEP")
    probe.add_argument("overrides", metavar="key=value", nargs="+", help="path, test_path; text, label: fields; l2")

    study = _command(commands, "study", _study, "compare recipes on the same amount of text; one table, one picture", (
        "configs/studies/architecture_objective.yaml",
        "configs/studies/bart_noise.yaml data.path=train.jsonl.gz data.validation_path=valid.jsonl.gz",
        "configs/studies/bart_noise.yaml tokens=200000 run_dir=runs/studies/short",
        "configs/studies/bart_noise.yaml evaluate.probe='{path: train.csv.gz, test_path: test.csv.gz}'",
        "configs/studies/bart_noise.yaml --table     # train nothing, write the table of what there is",
    ))  # fmt: skip
    study.add_argument("study", metavar="STUDY", help="its file (YAML): the rows, what they share, the tokens of each")
    study.add_argument("--table", action="store_true", help="only write the table and the picture, from the run_dirs")
    study.add_argument("--stop", action="store_true", help="end after the first row that fails")
    own = "sets a key in the recipes of all rows; tokens, run_dir and evaluate.… are the study's"
    study.add_argument("overrides", metavar="key=value", nargs="*", help=own)

    _conversions(commands)
    _tokenizer(commands)
    _command(commands, "doctor", _doctor, "versions, devices, memory, and what is missing", ("",))
    _command(commands, "schema", _schema, "the JSON Schema of recipes, for editors", ("> configs/schema.json",))
    return parser


def _planning(commands: argparse._SubParsersAction) -> None:
    plan = _command(commands, "plan", _plan, "does it fit, what does a step take, what is slow, what does it cost", (
        "configs/smoke/bert_tiny.yaml                          # on this machine's devices",
        "configs/pretrain/bert_base.yaml                       # on the slice that it names, with no TPU here",
        "configs/pretrain/bert_base.yaml plan.topology=null    # on this machine's devices",
        "configs/pretrain/t5_1_1_base.yaml --topology v5p:4x4x4 --slices 2 mesh.fsdp=64 --shardings",
        "configs/pretrain/gpt2_124m.yaml --topology v6e:4x4 --search 12",
        "configs/pretrain/gpt2_124m.yaml --topology v6e:4x4 --save steps    # jaxpt train … train.compiled=steps",
    ))  # fmt: skip
    _recipe(plan)
    plan.add_argument("--topology", metavar="SLICE", help="v4:4x4x4, v5e:16x16, v5p:4x4x4, … (plan.topology)")
    plan.add_argument("--slices", type=_count, metavar="N", help="number of such slices (1)")
    plan.add_argument("--json", action="store_true", help="print one JSON object")
    plan.add_argument("--save", metavar="DIR", help="write the compiled steps, for train.compiled=DIR")
    plan.add_argument("--shardings", action="store_true", help="show where each parameter lies")
    plan.add_argument(
        "--search", type=_count, nargs="?", const=12, default=0, metavar="N",
        help="try meshes, rows at a time and what the backward pass keeps, N programs at the most (12)",
    )  # fmt: skip
    plan.add_argument("--price", type=float, metavar="DOLLARS", help="of a chip-hour (list price, on demand)")
    plan.add_argument("--watts", type=float, metavar="W", help="of a chip with its share of the host")
    plan.add_argument("--carbon", type=float, metavar="KG", help="of CO₂ for a kilowatt-hour")


def _conversions(commands: argparse._SubParsersAction) -> None:
    take = _command(commands, "import", _import, "make a run directory of a Hugging Face directory", (
        "downloads/bert-base-uncased runs/bert_base",
        "downloads/gpt2 runs/gpt2 --verify",
        "stories260K.bin runs/stories260K --tokenizer tok512.model",
    ))  # fmt: skip
    take.add_argument("source", metavar="HF_DIR", help="config.json with safetensors or .bin files; or a llama2.c .bin")
    take.add_argument("out", metavar="OUT", help="the run directory to make")
    take.add_argument("--partial", action="store_true", help="take what fits, draw what is missing, drop the rest")
    take.add_argument(
        "--ignore", metavar="KEY", action="append", default=[], help="pass over an unknown key of config.json"
    )
    take.add_argument("--tokenizer", metavar="PATH", help="the vocabulary, where it is not in HF_DIR")
    give = _command(commands, "export", _export, "make a Hugging Face directory of a run", (
        "runs/bert_tiny out/bert_tiny",
        "runs/bert_tiny/checkpoints/500 out/bert_tiny_500 --dtype bfloat16 --verify",
    ))  # fmt: skip
    give.add_argument("run_dir", metavar="RUN_DIR", help="a run, or RUN_DIR/checkpoints/STEP")
    give.add_argument("out", metavar="OUT", help="the directory to make")
    give.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="of the tensors (the checkpoint's)")
    give.add_argument("--shard-gb", type=float, metavar="GB", help="largest size of a file (5)")
    for parser in (take, give):
        parser.add_argument("--verify", action="store_true", help="compare the outputs with Hugging Face's class")


def _tokenizer(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("tokenizer", help="train or look at a vocabulary", description="Vocabularies.")
    actions = parser.add_subparsers(dest="action", metavar="train|inspect", required=True)
    train = _command(actions, "train", _tokenizer_train, "train a vocabulary on a recipe's training split", (
        "configs/smoke/bert_tiny.yaml --out vocabularies/tiny",
        "configs/smoke/bert_tiny.yaml data.tokenizer.vocab_size=8000 --out vocabularies/8k",
    ))  # fmt: skip
    _recipe(train)
    train.add_argument("--out", metavar="DIR", required=True, help="directory to write the vocabulary to")
    inspect = _command(actions, "inspect", _tokenizer_inspect, "a vocabulary's size and special ids, a text's tokens", (
        "runs/bert_tiny/tokenizer",
        "runs/bert_tiny/tokenizer 'The cat sat on the mat.'",
    ))  # fmt: skip
    inspect.add_argument("path", metavar="PATH", help="a vocabulary's file or directory")
    inspect.add_argument("text", metavar="TEXT", nargs="?", help="a text to tokenize")


def _command(
    commands: argparse._SubParsersAction, name: str, run: Command, summary: str, examples: Sequence[str]
) -> argparse.ArgumentParser:
    """A command with its one-line help and its examples."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=summary[0].upper() + summary[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.epilog = "examples:\n" + "\n".join(f"  {parser.prog} {example}".rstrip() for example in examples)
    parser.set_defaults(run=run)
    _debug(parser, argparse.SUPPRESS)
    return parser


def _recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="a recipe (YAML), or the directory of a run")
    _overrides(parser)


def _overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", metavar="key=value", nargs="*", help="sets a key of the recipe; the value is YAML")


def _debug(parser: argparse.ArgumentParser, default: object) -> None:
    parser.add_argument("--debug", action="store_true", default=default, help="show the traceback of an error")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"wants a whole number above 0, got {text!r}")
    return int(text)


def _index(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"wants an index from 0, got {text!r}")
    return int(text)


class _Version(argparse.Action):
    """Looks the version up only when asked."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**{**kwargs, "nargs": 0, "help": "show the version"})  # type: ignore[arg-type]

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"jaxpt {version('jaxpt')}")
        parser.exit()
