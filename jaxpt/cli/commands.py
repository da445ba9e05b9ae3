"""The command line: parse, call, print errors.

Commands import their dependencies lazily, so `jaxpt --help` is fast. A user error prints one line on stderr and exits
with code 2; `--debug` shows the traceback.
"""

from __future__ import annotations

import argparse
import functools
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from jaxpt import errors
from jaxpt.cli import inference, reports
from jaxpt.cli.parsing import Parser, Version, add_debug, add_overrides, add_recipe, command, count, index, positive
from jaxpt.errors import AlreadySaid, UserError, printable
from jaxpt.runtime import allocator, plugins, signals
from jaxpt.runtime.stamp import stamped

if TYPE_CHECKING:
    from jaxpt.config import DistributedConfig


def start() -> NoReturn:
    """Entry point: runs the command in `sys.argv` and exits."""
    _read_and_print_utf_8()
    signals.start()
    allocator.keep_freed_memory()
    signals.finish(main())


def _read_and_print_utf_8() -> None:
    """In a locale without UTF-8, Python's mode for it is switched on: names of files are UTF-8 wherever recipes are."""
    if sys.getfilesystemencoding() != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # PYTHONIOENCODING may say something else


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
      argv: the arguments without the program name; default `sys.argv[1:]`.

    Returns:
      The exit code: 0, 2 for a user error, 128 + signal number if stopped by a signal.
    """
    arguments = parser().parse(sys.argv[1:] if argv is None else argv)
    if not sys.flags.safe_path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # recipes may name modules in the current directory
    notes: set[str] = set()  # a run's config.yaml is read several times
    errors.note = lambda line: line in notes or notes.add(line) or _note(line)
    try:
        with signals.watch(), plugins.explained():
            return arguments.run(arguments) or 0
    except (UserError, OSError, ModuleNotFoundError, MemoryError) as error:
        if arguments.debug or _internal(error):
            raise
        if isinstance(error, BrokenPipeError):  # `jaxpt schema | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        if not isinstance(error, AlreadySaid):
            _print_error(error)
        return 2


def _print_error(error: Exception) -> None:
    print(stamped(f"jaxpt: {_line(error)}"), file=sys.stderr, flush=True)


def _internal(error: Exception) -> bool:
    """True if a missing module belongs to jaxpt: a bug, not a missing dependency."""
    return isinstance(error, ModuleNotFoundError) and (error.name or "jaxpt").split(".")[0] == "jaxpt"


def _line(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"the Python package {error.name!r} is not installed; run `jaxpt doctor` to see what is missing"
    if isinstance(error, MemoryError):
        reason = printable(str(error))
        return f"out of memory{f' ({reason})' if reason else ''}; free some, or take smaller files and batches"
    if isinstance(error, OSError) and error.strerror:
        return printable(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
    return printable(str(error)) or type(error).__name__


def _note(line: str) -> None:
    """Reports ignored keys of a recipe, and modules that it imports."""
    print(stamped(f"jaxpt: note: {printable(line)}"), file=sys.stderr)


# ---- commands -------------------------------------------------------------------------------------------------------


def _distributed(overrides: Sequence[str]) -> DistributedConfig:
    """What the command line says of the processes of a run, whose recipe may not load."""
    from pydantic import ValidationError

    from jaxpt.config import DistributedConfig
    from jaxpt.config.files import override
    from jaxpt.config.kinds import strictly

    tree: dict[str, Any] = {}
    try:
        for setting in overrides:
            if setting.startswith("distributed."):
                override(tree, {}, setting)
        return strictly(DistributedConfig, tree.get("distributed", {}))
    except (UserError, ValidationError):  # the recipe's own error
        return DistributedConfig()


def _train(arguments: argparse.Namespace) -> int:
    from jaxpt.study.recipes import load

    try:
        config = load(arguments.config, arguments.overrides, report=_note)
        from jaxpt.train import preflight

        preflight.check(config)  # before slow imports
    except (UserError, OSError, ModuleNotFoundError) as error:
        if arguments.debug or _internal(error):
            raise
        from jaxpt.parallel import roll_call

        roll_call.fail(_line(error), _distributed(arguments.overrides), functools.partial(_print_error, error))
        raise AlreadySaid from error
    from jaxpt.train.loop import train
    from jaxpt.train.timings import Timings

    return train(config, Timings(wanted=arguments.timings))


def _eval(arguments: argparse.Namespace) -> None:
    if arguments.tasks:
        inference.evaluate_tasks(arguments)
        return
    inference.refuse_without_tasks(arguments)
    from jaxpt.cli.evaluate import evaluate

    evaluate(arguments.path, arguments.overrides)


def _inspect(arguments: argparse.Namespace) -> None:
    from jaxpt.study.recipes import load
    from jaxpt.train import preflight

    config = load(arguments.config, arguments.overrides, report=_note)
    preflight.check_recipe(config)
    from jaxpt.report.inspect import inspect

    inspect(
        config,
        count=arguments.n,
        at=arguments.at,
        split=arguments.split,
        phase=arguments.phase,
        html=arguments.html,
    )


def _data(arguments: argparse.Namespace) -> None:
    from jaxpt.study.recipes import load_data

    config, has_tokenizer = load_data(arguments.config, arguments.overrides, report=_note)
    from jaxpt.report.data import data

    data(config, has_tokenizer, most=arguments.n, as_json=arguments.json)


def _plan(arguments: argparse.Namespace) -> None:
    from jaxpt.study.recipes import load

    config = load(arguments.config, arguments.overrides, report=_note)
    from jaxpt.plan.command import Assumptions, plan

    if arguments.decode is not None:
        from jaxpt.plan.command import plan_decode

        if arguments.search or arguments.save or arguments.shardings:
            raise UserError(
                "--decode goes with --topology, --slices and --json, not with --search, --save, --shardings"
            )
        where = (arguments.topology, arguments.slices, arguments.overrides)
        plan_decode(config, arguments.decode, *where, as_json=arguments.json)
        return
    options = {name: getattr(arguments, name) for name in ("price", "watts", "carbon")}
    plan(
        config,
        arguments.topology,
        arguments.slices,
        as_json=arguments.json,
        shardings=arguments.shardings,
        searching=arguments.search,
        assumptions=Assumptions(**{name: value for name, value in options.items() if value is not None}),
        save=arguments.save,
    )


def _cache(arguments: argparse.Namespace) -> None:
    from jaxpt.report.caches import cache
    from jaxpt.study.recipes import load

    config = load(arguments.config, arguments.overrides, report=_note)
    if (arguments.batches is None) != (arguments.out is None):
        raise UserError("--batches STEPS and --out DIR go together")
    if arguments.batches is not None:
        from jaxpt.report.caches import write_batches

        write_batches(config, arguments.batches, arguments.out)
        return
    cache(config, arguments.workers, arguments.verify, arguments.beam)


def _verify(arguments: argparse.Namespace) -> int:
    from jaxpt.report.verify import verify

    return verify(arguments.run_dir)


def _study(arguments: argparse.Namespace) -> int:
    from jaxpt.study.pretrainings import study

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
    from jaxpt.hf.convert import import_weights

    import_weights(
        arguments.source, arguments.out, check=arguments.verify, partial=arguments.partial, ignore=arguments.ignore,
        tokenizer=arguments.tokenizer, base=arguments.base, overrides=arguments.overrides,
    )  # fmt: skip


def _export(arguments: argparse.Namespace) -> None:
    from jaxpt.hf.convert import export, export_adapter

    if arguments.adapter:
        if arguments.dtype or arguments.verify or arguments.shard_gb or arguments.task:
            raise UserError("--adapter: --dtype, --verify, --shard-gb and --task are of whole models; leave them out")
        export_adapter(arguments.run_dir, arguments.out)
        return
    size = None if arguments.shard_gb is None else max(1, int(arguments.shard_gb * 1e9))
    export(
        arguments.run_dir, arguments.out, check=arguments.verify, dtype=arguments.dtype, shard_bytes=size,
        task=arguments.task,
    )  # fmt: skip


def _doctor(arguments: argparse.Namespace) -> int:
    from jaxpt.cli.doctor import doctor

    return doctor()


def _schema(arguments: argparse.Namespace) -> None:
    from pathlib import Path

    from jaxpt.config import schema_text, write_schemas

    if arguments.write is None:
        print(schema_text(arguments.kind or "recipe"), end="")
        return
    if arguments.kind is not None:
        raise UserError(f"--write writes the schemas of all kinds; leave {arguments.kind} out")
    print(*write_schemas(Path(arguments.write)), sep="\n")


# ---- parsing --------------------------------------------------------------------------------------------------------


def parser() -> Parser:
    """The command line of jaxpt."""
    parser = Parser(
        prog="jaxpt",
        description="Pretrain encoders, decoders and encoder-decoders with JAX: raw text in, a trained model out.",
        epilog="examples:\n"
        "  jaxpt doctor\n"
        "  jaxpt inspect configs/smoke/bert_tiny.yaml\n"
        "  jaxpt train configs/smoke/gpt2_tiny.yaml train.steps=200\n"
        "  jaxpt generate runs/gpt2_tiny --prompt 'Once upon a time'\n\n"
        "For each command see jaxpt COMMAND --help. A key=value argument overrides a key of the recipe.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=Version)
    add_debug(parser, False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    train = command(commands, "train", _train, "pretrain; resumes an interrupted run", (
        "configs/smoke/bert_tiny.yaml",
        "configs/smoke/gpt2_tiny.yaml train.steps=200 optimizer.learning_rate=0.01 run_dir=try",
        "try train.steps=400                     # a run directory is a recipe too",
        "configs/smoke/bert_tiny.yaml 'train.phases=[]' data.length=48 data.batch_size=8",
    ), writes="RUN_DIR (runs/NAME OF THE RECIPE): config.yaml, checkpoints/, tokenizer/, metrics.jsonl,\n"
       "tensorboard/, evaluations/, run.json; and prepared text into ~/.cache/jaxpt (data.cache_dir)")  # fmt: skip
    add_recipe(train)
    train.add_argument("--timings", action="store_true", help="say where the time went up to the first step")

    evaluate = command(commands, "eval", _eval, "run the evaluators of a recipe, or tasks, on a trained model", (
        "runs/bert_tiny",
        "configs/smoke/bert_tiny.yaml train.eval_examples=1000",
        "runs/gpt2 --tasks lambada,piqa --shots 0,5 --limit 500 --data sets",
        "hf/bert-base-uncased --tasks blimp --unit word --data sets --corpus text.jsonl.gz",
        "runs/gpt2 --tasks my_task.yaml my_task.data.path=rows.jsonl",
    ), writes="nothing; with --tasks RUN_DIR/harness, of a checkpoint RUN_DIR/harness/STEP (--out)")  # fmt: skip
    evaluate.add_argument("path", metavar="CONFIG|RUN_DIR|HF_DIR", help="a recipe, or a run; with --tasks any model")
    inference.add_task_options(evaluate)
    add_overrides(evaluate)

    inspect = command(commands, "inspect", _inspect, "show training examples: tokens, masks, spans, padding", (
        "configs/smoke/bert_tiny.yaml",
        "configs/smoke/t5_tiny.yaml -n 3 --at 1000 --html batches.html",
        "configs/smoke/gpt2_tiny.yaml --split validation data.length=64",
    ), writes="prepared text into ~/.cache/jaxpt (data.cache_dir); with --html a page")  # fmt: skip
    add_recipe(inspect)
    inspect.add_argument("-n", type=count, default=8, metavar="N", help="number of examples (8)")
    inspect.add_argument("--at", type=index, default=0, metavar="INDEX", help="index of the first example (0)")
    inspect.add_argument("--split", choices=("train", "validation"), default="train", help="split (train)")
    inspect.add_argument("--phase", type=count, default=1, metavar="N", help="phase of the recipe, from 1 (1)")
    inspect.add_argument("--html", metavar="FILE", help="write an HTML page instead of printing")

    data = command(commands, "data", _data, "show what a recipe's data is: lengths, languages, duplicates, labels", (
        "configs/smoke/bert_tiny.yaml",
        "configs/pretrain/gpt2_124m.yaml data.path=mytexts data.documents=file -n 10000",
        "configs/finetune/roberta/sst2.yaml data.path=sst2/train.tsv --json",
    ))  # fmt: skip
    add_recipe(data)
    data.add_argument("-n", type=count, metavar="N", help="read only the first N documents or rows of each split")
    data.add_argument("--json", action="store_true", help="print one JSON object")

    inference.add(commands)
    _planning(commands)

    cache = command(commands, "cache", _cache, "prepare a recipe's records in parallel before training", (
        "configs/smoke/bert_tiny.yaml --workers 8",
        "configs/smoke/bert_tiny.yaml --verify     # read every file; rewrite damaged ones",
        "configs/smoke/bert_tiny.yaml --beam='--runner=FlinkRunner' data.cache_dir=/mnt/shared",
        "configs/smoke/bert_tiny.yaml --batches 200 --out DIR   # for data.source=batches",
    ), writes="prepared text into ~/.cache/jaxpt (data.cache_dir); with --batches the directory --out")  # fmt: skip
    add_recipe(cache)
    cache.add_argument(
        "--batches", type=count, metavar="STEPS",
        help="write the batches of so many steps, to train from them where TensorFlow is not installed",
    )  # fmt: skip
    cache.add_argument("--out", metavar="DIR", help="where the batches go: a new directory")
    cache.add_argument("--workers", type=count, metavar="N", help="number of processes (one per core)")
    cache.add_argument("--beam", metavar="OPTIONS", help="prepare them with Apache Beam: '--runner=DataflowRunner …'")
    cache.add_argument("--verify", action="store_true", help="compare the checksums of all files, however large")

    verify = command(
        commands, "verify", _verify, "compare all files of a run with their checksums", ("runs/bert_tiny",)
    )
    verify.add_argument("run_dir", metavar="RUN_DIR", help="a run, or a directory of prepared batches")

    probe = command(commands, "probe", _probe, "train a linear classifier of texts or words on a frozen model", (
        "runs/bert_tiny path=train.csv.gz test_path=test.csv.gz text=text label=category",
        "runs/bert_tiny path=train.conllu test_path=test.conllu unit=word label=upos layer=all",
    ), writes="RUN_DIR/evaluations/probe.json")  # fmt: skip
    probe.add_argument("run_dir", metavar="RUN_DIR", help="a run, or RUN_DIR/checkpoints/STEP")
    probe.add_argument(
        "overrides", metavar="key=value", nargs="+", help="path, test_path, unit, text and label (fields), layer, l2"
    )

    study = command(commands, "study", _study, "train several recipes on the same amount of text and compare them", (
        "configs/studies/architecture_objective.yaml",
        "configs/studies/bart_noise.yaml data.path=a.jsonl.gz data.validation_path=b.jsonl.gz",
        "configs/studies/bart_noise.yaml tokens=200000 run_dir=runs/studies/short",
        "configs/studies/bart_noise.yaml evaluate.probe='{path: a.csv, test_path: b.csv}'",
        "configs/studies/bart_noise.yaml --table     # only write the table of existing runs",
    ), writes="STUDY (runs/studies/NAME OF THE FILE): a run of each row, table.md, picture.png")  # fmt: skip
    study.add_argument("study", metavar="STUDY", help="a study file (YAML): rows, shared settings, tokens per row")
    study.add_argument("--table", action="store_true", help="only write table and picture, from the run directories")
    study.add_argument("--stop", action="store_true", help="stop after the first row that fails")
    help_text = "overrides a key in the recipes of all rows; tokens, run_dir and evaluate.… are keys of the study"
    add_overrides(study, help_text)

    reports.add(commands)
    _conversions(commands)
    _tokenizer(commands)
    command(commands, "doctor", _doctor, "check versions, devices and memory, and list what is missing", ("",))
    schema = command(commands, "schema", _schema, "print or write the JSON Schemas of YAML files, for editors", (
        "> schema.json                 # of recipes",
        "study > study.schema.json",
        "--write configs               # of recipes, studies and models",
    ))  # fmt: skip
    schema.add_argument("kind", nargs="?", choices=("recipe", "study", "model"), help="kind of file (recipe)")
    schema.add_argument("--write", metavar="DIR", help="write the schemas of all kinds into a directory")
    return parser


def _planning(commands: argparse._SubParsersAction) -> None:
    plan = command(commands, "plan", _plan, "estimate memory, step time, bottlenecks and cost, without running", (
        "configs/smoke/bert_tiny.yaml                     # for this machine's devices",
        "configs/pretrain/bert_base.yaml             # for the recipe's TPU slice, without a TPU",
        "configs/pretrain/bert_base.yaml plan.topology=null    # for this machine's devices",
        "configs/pretrain/t5_1_1_base.yaml --topology v5p:4x4x4 --slices 2 mesh.fsdp=64",
        "configs/pretrain/bert_base.yaml --topology h100:8        # or h100:2x8: two machines",
        "configs/pretrain/gpt2_124m.yaml --topology v6e:4x4 --search 12",
        "configs/pretrain/gpt2_124m.yaml --topology v6e:4x4 --save DIR  # train.compiled=DIR",
        "configs/pretrain/llama3_8b.yaml --topology v5e:2x4 --decode 32x4096",
    ))  # fmt: skip
    add_recipe(plan)
    plan.add_argument("--topology", metavar="DEVICES", help="v5e:16x16, v5p:4x4x4, h100:8, h200:2x8, … (plan.topology)")
    plan.add_argument("--slices", type=count, metavar="N", help="number of slices (1)")
    plan.add_argument("--json", action="store_true", help="print one JSON object")
    plan.add_argument(
        "--decode", metavar="BATCHxLENGTH", help="plan decoding; encoder-decoders: BATCHxENCODER/DECODER, as 32x512/128"
    )
    plan.add_argument("--save", metavar="DIR", help="save the compiled steps for train.compiled=DIR")
    plan.add_argument("--shardings", action="store_true", help="show the sharding of each parameter")
    plan.add_argument(
        "--search", type=count, nargs="?", const=12, default=0, metavar="N",
        help="search meshes, microbatch sizes and remat, with at most N compilations (12)",
    )  # fmt: skip
    plan.add_argument("--price", type=float, metavar="DOLLARS", help="price per chip-hour (on-demand list price)")
    plan.add_argument("--watts", type=float, metavar="W", help="power of a chip, including its share of the host")
    plan.add_argument("--carbon", type=float, metavar="KG", help="CO₂ per kilowatt-hour")


def _conversions(commands: argparse._SubParsersAction) -> None:
    take = command(commands, "import", _import, "convert a Hugging Face directory to a run directory", (
        "downloads/bert-base-uncased runs/bert_base",
        "downloads/gpt2 runs/gpt2 --verify",
        "downloads/finbert runs/finbert task.text=sentence",
        "stories260K.bin runs/stories260K --tokenizer tok512.model",
        "downloads/adapter runs/adapted --base downloads/gpt2",
    ), writes="OUT: config.yaml, checkpoints/0, tokenizer/")  # fmt: skip
    take.add_argument("source", metavar="HF_DIR", help="config.json with safetensors or .bin files; or a llama2.c .bin")
    take.add_argument("out", metavar="OUT", help="the run directory to create")
    take.add_argument("--partial", action="store_true", help="load matching tensors, initialise missing ones")
    take.add_argument(
        "--ignore", metavar="KEY", action="append", default=[], help="ignore an unknown key of config.json"
    )
    take.add_argument("--tokenizer", metavar="PATH", help="the vocabulary, if it is not in HF_DIR")
    take.add_argument("--base", metavar="DIR", help="base model of a peft adapter (what its adapter_config.json names)")
    add_overrides(take)
    give = command(commands, "export", _export, "convert a run to a Hugging Face directory", (
        "runs/bert_tiny out/bert_tiny",
        "runs/bert_tiny/checkpoints/500 out/bert_tiny_500 --dtype bfloat16 --verify",
    ), writes="OUT: config.json, model.safetensors, and the tokenizer's files")  # fmt: skip
    give.add_argument("run_dir", metavar="RUN_DIR", help="a run, or RUN_DIR/checkpoints/STEP")
    give.add_argument("out", metavar="OUT", help="the directory to create")
    give.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="dtype of the tensors (checkpoint's)")
    give.add_argument("--adapter", action="store_true", help="only the low-rank adapter, in peft's layout")
    give.add_argument("--task", metavar="NAME", help="of a run with several tasks, the one whose head is converted")
    give.add_argument("--shard-gb", type=positive, metavar="GB", help="maximum size of a file (5)")
    for parser in (take, give):
        parser.add_argument("--verify", action="store_true", help="compare the outputs with transformers")


def _tokenizer(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("tokenizer", help="train or inspect a vocabulary", description="Vocabularies.")
    actions = parser.add_subparsers(dest="action", metavar="train|inspect", required=True)
    train = command(actions, "train", _tokenizer_train, "train a vocabulary on a recipe's training split", (
        "configs/smoke/bert_tiny.yaml --out vocabularies/tiny",
        "configs/smoke/bert_tiny.yaml data.tokenizer.vocab_size=8000 --out words/8k",
    ), writes="DIR: the vocabulary's files, for data.tokenizer.path")  # fmt: skip
    add_recipe(train)
    train.add_argument("--out", metavar="DIR", required=True, help="directory to write the vocabulary to")
    inspect = command(actions, "inspect", _tokenizer_inspect, "show a vocabulary, and the tokens of a text", (
        "runs/bert_tiny/tokenizer",
        "runs/bert_tiny/tokenizer 'The cat sat on the mat.'",
    ))  # fmt: skip
    inspect.add_argument("path", metavar="PATH", help="vocabulary file or directory")
    inspect.add_argument("text", metavar="TEXT", nargs="?", help="text to tokenize")
