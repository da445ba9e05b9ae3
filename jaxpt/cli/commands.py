"""The command line: parse, call, print errors.

Commands import their dependencies lazily, so `jaxpt --help` is fast. A user error prints one line on stderr and exits
with code 2, or another of `jaxpt.runtime.exit_codes`; `--debug` shows the traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import io
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from jaxpt import errors
from jaxpt.cli.parsing import Parser, Version, add_command, add_common, output
from jaxpt.cli.table import COMMANDS
from jaxpt.errors import AlreadySaid, UserError, printable
from jaxpt.runtime import exit_codes, plugins, process, progress, signals
from jaxpt.runtime.stamp import stamped

if TYPE_CHECKING:
    from jaxpt.config import DistributedConfig

NOT_OF_COMMANDS = ("command", "action", "debug", "quiet")
"""Arguments that no command's function gets."""
_OF_ALL_PLANS = ("topology", "slices", "as_json")
"""Options of `jaxpt plan` that go with --decode and --search, too."""


def start() -> NoReturn:
    """Entry point: runs the command in `sys.argv` and exits."""
    _read_and_print_utf_8()
    signals.start()
    process.keep_freed_memory()
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
      The exit code (`jaxpt.runtime.exit_codes`).
    """
    arguments = parser().parse(sys.argv[1:] if argv is None else argv)
    if not sys.flags.safe_path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # recipes may name modules in the current directory
    progress.display.quiet = arguments.quiet
    signals.set_resumable(arguments.parser.command.resumes in arguments)
    # From here on, as a launcher may ask a run to save before its first step.
    saves = signals.save_requests() if arguments.command == "train" else contextlib.nullcontext()
    try:
        with errors.noting(_note), signals.watch(), saves, plugins.explained():
            return _run(arguments) or 0
    except (UserError, OSError, ModuleNotFoundError, MemoryError) as error:
        if arguments.debug or _internal(error):
            raise
        if isinstance(error, BrokenPipeError):  # `jaxpt schema | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        if not isinstance(error, AlreadySaid):
            _print_error(error)
        return exit_codes.of(error)


def _run(arguments: argparse.Namespace) -> int | None:
    """Calls a command's function with the arguments that the command line has."""
    settings = {name: x for name, x in vars(arguments).items() if name not in NOT_OF_COMMANDS}
    module, _, function = settings.pop("parser").command.function.partition(":")
    if "config" in settings:
        from jaxpt.study.recipes import load

        settings["config"] = load(settings["config"], settings.pop("overrides"), report=errors.note)
    return getattr(importlib.import_module(module), function)(**settings)


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
        "For each command see jaxpt COMMAND --help. A key=value argument overrides a key of the recipe.\n\n"
        + exit_codes.table(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=Version)
    add_common(parser, False)
    subparsers = {"": parser.add_subparsers(dest="command", metavar="COMMAND", required=True)}
    for name, command in COMMANDS.items():
        group, _, last = name.rpartition(" ")
        if group not in subparsers:
            words = "train, extend or inspect a vocabulary"
            parent = subparsers[""].add_parser(group, help=words, description="Vocabularies.")
            subparsers[group] = parent.add_subparsers(dest="action", metavar="train|extend|inspect", required=True)
        add_command(subparsers[group], last, command)
    return parser


def _print_error(error: Exception) -> None:
    print(stamped(f"jaxpt: {_line(error)}"), file=sys.stderr, flush=True)


def _internal(error: Exception) -> bool:
    """True if a missing module belongs to jaxpt or to a package that is imported: a bug, not a missing dependency."""
    if not isinstance(error, ModuleNotFoundError):
        return False
    package, _, part = (error.name or "jaxpt").partition(".")
    return package == "jaxpt" or (bool(part) and package in sys.modules)


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


# ---- commands that need more than a call ----------------------------------------------------------------------------


def _distributed(overrides: Sequence[str]) -> DistributedConfig:
    """What the command line says of the processes of a run, whose recipe may not load."""
    import yaml

    from jaxpt.config import DistributedConfig

    settings = (override.partition("=") for override in overrides if override.startswith("distributed."))
    try:
        return DistributedConfig(
            **{key.removeprefix("distributed."): yaml.safe_load(text) for key, _, text in settings}
        )
    except (yaml.YAMLError, ValueError):  # the recipe's own error
        return DistributedConfig()


def train(path: str, overrides: Sequence[str], timings: bool = False) -> int:
    """`jaxpt train`: errors before the first step end all processes of a run, and one of them prints the line."""
    begun = time.monotonic()
    from jaxpt.study.recipes import load

    try:
        config = load(path, overrides, report=errors.note)
        from jaxpt.train import preflight

        preflight.check(config)  # before slow imports
    except (UserError, OSError, ModuleNotFoundError) as error:
        if _internal(error):
            raise
        from jaxpt.parallel import roll_call

        roll_call.fail(_line(error), _distributed(overrides), functools.partial(_print_error, error))
        raise AlreadySaid(exit_codes.of(error)) from error
    from jaxpt.train.loop import train
    from jaxpt.train.timings import Timings

    return train(config, Timings(wanted=timings, begun=begun))


def plan(path: str, overrides: Sequence[str], decode: str | None = None, **options: Any) -> None:
    """`jaxpt plan`: of a training step, of the best settings for it, or of decoding."""
    mode = "--decode" if decode is not None else "--search" if "searching" in options else ""
    given = [f"--{name}".replace("searching", "search") for name in options if name not in _OF_ALL_PLANS]
    if mode and (others := [name for name in given if name != mode]):
        raise UserError(f"{mode} goes with --topology, --slices and --json; leave out {', '.join(others)}")
    from jaxpt.study.recipes import load

    config = load(path, overrides, report=errors.note)
    if decode is None:
        from jaxpt.plan.command import plan

        plan(config, **options)
    else:
        from jaxpt.plan.command import plan_decode

        plan_decode(config, decode, overrides=overrides, **options)


def probe(path: str, overrides: Sequence[str]) -> None:
    """`jaxpt probe`."""
    from jaxpt.config.studies import load_probe

    settings = load_probe(overrides)
    from jaxpt.evals.probe import probe

    probe(path, settings)


def neighbours(
    path: str, query: str | None = None, html: str | None = None, png: str | None = None, **options: Any
) -> None:
    """`jaxpt neighbours`, with a picture."""
    from jaxpt.inference.neighbours import neighbours
    from jaxpt.report.points import draw

    nearest = neighbours(path, query, html=html, png=png, **options)
    if nearest and (html or png):
        draw(nearest, html, png)


def import_model(source: str, out: str, **options: Any) -> None:
    """`jaxpt import`: a model of another program, or a file of word vectors."""
    from jaxpt.inference import vector_files

    if not vector_files.is_vectors(source):
        from jaxpt.hf.convert import import_weights

        import_weights(source, out, **options)
        return
    from jaxpt.inference.static_vectors import import_vectors

    if any(options.values()):
        raise UserError(f"{source}: is a file of word vectors, which has no options; leave them out")
    import_vectors(source, out)


def export(
    run: str, out: str, adapter: bool = False, every: bool = False, shard_gb: float | None = None, **options: Any
) -> None:
    """`jaxpt export`: a model, each checkpoint of a run, or an adapter alone.

    Args:
      run: a run, or one of its checkpoints.
      out: the new directory, or a file of word vectors.
      adapter: only the adapter.
      every: all checkpoints of the run.
      shard_gb: the largest size of a file of weights, in GB.
      **options: more arguments of `convert.export` or `revisions.export_every`.

    Raises:
      UserError: options that do not go together.
    """
    from jaxpt.inference import vector_files

    if vector_files.form(out) is not None:
        from jaxpt.inference.static_vectors import export as export_vectors

        if adapter or every or shard_gb is not None or options:
            raise UserError(f"{out}: is a file of word vectors, which has no options; leave them out")
        export_vectors(run, out)
        return
    from jaxpt.hf import convert, revisions

    if shard_gb is not None:
        options["shard_bytes"] = max(1, int(shard_gb * 1e9))
    if adapter and every:
        raise UserError("--adapter: --every is of whole models; leave one of them out")
    if not adapter:
        (revisions.export_every if every else convert.export)(run, out, **options)
    elif options:
        raise UserError("--adapter: --dtype, --verify, --shard-gb and --task are of whole models; leave them out")
    else:
        convert.export_adapter(run, out)


def schema(kind: str | None, write: str | None = None) -> None:
    """`jaxpt schema`."""
    from pathlib import Path

    from jaxpt.config import schema_text, write_schemas

    if write is None:
        print(schema_text(kind or "recipe"), end="")
    elif not Path(write).is_dir():
        raise UserError(f"--write {write}: no such directory")
    elif kind is None:
        print(*write_schemas(Path(write)), sep="\n")
    else:
        raise UserError(f"--write writes the schemas of all kinds; leave {kind} out")


def completion(shell: str) -> None:
    """`jaxpt completion`: the script with which a shell completes commands, options, choices and names of files.

    Args:
      shell: "bash" or "zsh".

    Raises:
      UserError: shtab, which writes it, is not installed.
    """
    try:
        import shtab
    except ModuleNotFoundError:
        from jaxpt.runtime import packages

        raise UserError(f"completion: shtab is not installed: {packages.install_command('completion')}") from None
    whole = parser()
    for action in _actions(whole):
        if action.nargs != 0 and action.choices is None and action.type in (None, output):  # all others may be files
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(whole, shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser and of its subparsers."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                yield from _actions(subparser)
        else:
            yield action
