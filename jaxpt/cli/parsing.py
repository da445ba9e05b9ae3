"""What all commands' arguments are made of: a parser that answers a mistake in one line, and common arguments."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from typing import NoReturn

Command = Callable[[argparse.Namespace], int | None]


class Parser(argparse.ArgumentParser):
    """Prints errors in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        match = re.fullmatch(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)", message)
        if match is not None:
            name, word, choices = match.groups()
            from jaxpt.config.kinds import nearest

            if near := nearest(word, re.findall(r"[\w-]+", choices), ""):
                message = f"{name}: {word!r} is none{near}"
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The arguments of a command; overrides may stand before and after its options. `help X` is `X --help`."""
        if list(argv[:1]) == ["help"]:
            argv = [*argv[1:2], "--help"]
        arguments, rest = self.parse_known_args(argv)  # which leaves overrides after an option
        for word in rest:
            if word.startswith("-") or "overrides" not in arguments:
                self._command(arguments.command).unknown(word)
        if rest:
            arguments.overrides = [*arguments.overrides, *rest]
        return arguments

    def _command(self, name: str) -> Parser:
        """The parser of a command."""
        commands = next(action for action in self._actions if isinstance(action, argparse._SubParsersAction))
        return commands.choices[name]

    def unknown(self, word: str) -> NoReturn:
        """Says that a word is no argument, and the options that it is near to."""
        from jaxpt.config.kinds import nearest

        options = [option for option in self._option_string_actions if option.startswith("--")]
        self.error(f"unknown argument {word!r}{nearest(word.partition('=')[0], options, '')}")


def command(
    commands: argparse._SubParsersAction,
    name: str,
    run: Command,
    summary: str,
    examples: Sequence[str],
    writes: str = "",
) -> argparse.ArgumentParser:
    """Adds a command.

    Args:
      commands: the subparsers.
      name: of the command.
      run: what it calls; returns its exit code, None for 0.
      summary: its line in the list of commands.
      examples: arguments, without `jaxpt NAME`.
      writes: what it leaves on disk.

    Returns:
      Its parser.
    """
    description = f"{summary[0].upper()}{summary[1:]}." + (f"\nWrites {writes}." if writes else "")
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.epilog = "examples:\n" + "\n".join(f"  {parser.prog} {example}".rstrip() for example in examples)
    parser.set_defaults(run=run)
    add_debug(parser, argparse.SUPPRESS)
    return parser


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """Adds a recipe and overrides of its keys."""
    parser.add_argument("config", metavar="CONFIG", help="a recipe (YAML), or a run directory")
    add_overrides(parser)


def add_overrides(parser: argparse.ArgumentParser, about: str = "overrides a key of the recipe (YAML value)") -> None:
    """Adds overrides of a recipe's keys."""
    # Without a default argparse lists them among the arguments that are required.
    parser.add_argument("overrides", metavar="key=value", nargs="*", default=[], help=about)


def add_debug(parser: argparse.ArgumentParser, default: object) -> None:
    """Adds --debug."""
    parser.add_argument("--debug", action="store_true", default=default, help="show the traceback of an error")


def count(text: str) -> int:
    """The type of an argument: an integer from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return int(text)


def positive(text: str) -> float:
    """The type of an argument: a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return value


def index(text: str) -> int:
    """The type of an argument: an integer from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an index ≥ 0, got {text!r}")
    return int(text)


class Version(argparse.Action):
    """Looks up the version lazily."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**{**kwargs, "nargs": 0, "help": "show the version"})  # type: ignore[arg-type]

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"jaxpt {version('jaxpt')}")
        parser.exit()
