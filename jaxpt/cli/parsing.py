"""Commands, their arguments and the types of these, and the parser, which reports a mistake in one line."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from jaxpt.errors import UserError
from jaxpt.runtime import disk


class Argument(NamedTuple):
    """An argument of a command. The command's function gets it as `dest`, if the command line has it."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]
    """Other arguments of `add_argument`."""
    group: str = ""
    """Its heading in the help."""


class Command(NamedTuple):
    """A command of `jaxpt`."""

    function: str
    """"module:function"; it is imported when the command runs, and returns the exit code, None for 0."""
    summary: str
    """The line in the list of commands."""
    arguments: Sequence[Argument] = ()
    examples: Sequence[str] = ("",)
    """Arguments, without `jaxpt NAME`."""
    writes: str = ""
    """What it leaves on disk."""
    resumes: str = ""
    """The argument with which the same command resumes where it was stopped; "" if it never does."""


def arg(name: str, metavar: str | None, text: str, group: str = "", **settings: Any) -> Argument:
    """An argument with a value.

    Args:
      name: `--option`, or the name of a positional argument.
      metavar: what stands for the value in the help.
      text: its help.
      group: its heading in the help.
      **settings: other arguments of `add_argument`.
    """
    return Argument((name,), {"metavar": metavar, "help": text, **settings}, group)


def flag(name: str, text: str, **settings: Any) -> Argument:
    """An option without a value."""
    return Argument((name,), {"action": "store_true", "help": text, **settings})


def overrides(text: str = "overrides a key of the recipe (YAML value)", nargs: str = "*") -> Argument:
    """Overrides of a recipe's keys."""
    # Without a default argparse lists them among the arguments that are required.
    default = {"default": []} if nargs == "*" else {}
    return arg("overrides", "key=value", text, nargs=nargs, **default)


PATH = arg("path", "CONFIG", "a recipe (YAML), or a run directory"), overrides()
RECIPE = arg("config", "CONFIG", "a recipe (YAML), or a run directory"), overrides()


MEANT = {
    "resume": "train", "continue": "train", "finetune": "train", "fine-tune": "train", "pretrain": "train",
    "list": "runs", "sample": "generate", "test": "eval",
}  # fmt: skip
"""{a word that is no command: the command that does it}."""


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-"  # which is stdin


class Parser(argparse.ArgumentParser):
    """Prints errors in one line, without the usage."""

    command: Command
    """The command whose arguments it parses."""

    def error(self, message: str) -> NoReturn:
        match = re.fullmatch(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)", message)
        if match is not None:
            name, word, choices = match.groups()
            from jaxpt.config.kinds import nearest

            known = re.findall(r"[\w-]+", choices)
            if name == "COMMAND":
                near = f"; did you mean {MEANT[word]}?" if word in MEANT else nearest(word, known, "", cutoff=0.7)
                message = f"unknown command {word!r}{near}"
            elif near := nearest(word, known, ""):
                message = f"{name}: {word!r} is none{near}"
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parses the arguments of a command. Overrides and an argument that may be left out may stand before and after
        options. `help X` is `X --help`."""
        if list(argv[:1]) == ["help"]:
            argv = [*argv[1:2], "--help"]
        arguments, rest = self.parse_known_args(argv)  # which leaves overrides after an option
        rest = arguments.parser.take_optional(arguments, rest)
        for word in rest:
            if _is_option(word) or "overrides" not in arguments:
                arguments.parser.unknown(word)
        if rest:
            arguments.overrides = [*arguments.overrides, *rest]
        return arguments

    def take_optional(self, arguments: argparse.Namespace, rest: Sequence[str]) -> list[str]:
        """Gives words behind an option to positional arguments that may be left out: until Python 3.12 argparse takes
        these for left out as soon as an option follows the one before.

        Args:
          arguments: are given them.
          rest: the words that argparse left.

        Returns:
          The other words.
        """
        rest = list(rest)
        for action in self._actions:
            is_open = not action.option_strings and action.nargs == "?"
            word = next((word for word in rest if not _is_option(word)), None)
            if is_open and word is not None and getattr(arguments, action.dest, None) is None:
                try:
                    setattr(arguments, action.dest, self._get_values(action, [word]))
                except argparse.ArgumentError as error:
                    self.error(str(error))
                rest.remove(word)
        return rest

    def unknown(self, word: str) -> NoReturn:
        """Reports an unknown argument, and options with a similar name."""
        from jaxpt.config.kinds import nearest

        options = [option for option in self._option_string_actions if option.startswith("--")]
        self.error(f"unknown argument {word!r}{nearest(word.partition('=')[0], options, '')}")


def add_command(commands: argparse._SubParsersAction, name: str, command: Command) -> None:
    """Adds a command's parser. Its namespace has only the arguments that the command line has.

    Args:
      commands: the subparsers.
      name: the command's name.
      command: the entry of the table.
    """
    summary, writes = command.summary, command.writes
    parser: Parser = commands.add_parser(
        name, help=summary, argument_default=argparse.SUPPRESS, formatter_class=argparse.RawDescriptionHelpFormatter,
        description=f"{summary[0].upper()}{summary[1:]}." + (f"\nWrites {writes}." if writes else ""),
    )  # fmt: skip
    parser.epilog = "examples:\n" + "\n".join(f"  {parser.prog} {example}".rstrip() for example in command.examples)
    parser.set_defaults(parser=parser)
    parser.command = command
    add_common(parser, argparse.SUPPRESS)
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for argument in command.arguments:
        if argument.group not in groups:
            groups[argument.group] = parser.add_argument_group(argument.group)
        groups[argument.group].add_argument(*argument.names, **argument.settings)


def add_common(parser: argparse.ArgumentParser, default: object) -> None:
    """Adds the options of all commands."""
    parser.add_argument("--debug", action="store_true", default=default, help="show the traceback of an error")
    parser.add_argument("--quiet", action="store_true", default=default, help="show no progress")


class Version(argparse.Action):
    """Looks up the version lazily."""

    def __init__(self, **kwargs: object) -> None:
        settings = kwargs | {"nargs": 0, "dest": argparse.SUPPRESS, "help": "show the version"}
        super().__init__(**settings)  # type: ignore[arg-type]

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"jaxpt {version('jaxpt')}")
        parser.exit()


# ---- types of arguments: each converts the text of an argument, or says what it expects -----------------------------


def output(text: str) -> str:
    """A file or directory to be written."""
    try:
        disk.check_mounted(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _checked(convert: Callable[[str], Any], is_right: Callable[[Any], bool], expected: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            parsed = convert(text)
        except ValueError:
            parsed = None
        if parsed is None or not is_right(parsed):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return parsed

    return parse


def _integers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


count = _checked(int, lambda number: number >= 1, "a positive integer")
index = _checked(int, lambda number: number >= 0, "an index ≥ 0")
positive = _checked(float, lambda number: 0 < number < math.inf, "a number above 0")
nonnegative = _checked(float, lambda number: 0 <= number < math.inf, "a number from 0 on")
share = _checked(float, lambda number: 0 <= number <= 1, "a share from 0 to 1")
numbers = _checked(_integers, lambda numbers: min(numbers) >= 0, "numbers such as 0,5")
words = _checked(_words, bool, "names such as a,b")
