"""`jaxpt completion SHELL`: the script with which a shell completes commands, options, choices and names of files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from jaxpt.errors import UserError


def script(shell: str) -> str:
    """The script for a shell.

    Args:
      shell: "bash" or "zsh".

    Raises:
      UserError: shtab, which writes it, is not installed.
    """
    from jaxpt.cli.commands import parser

    try:
        import shtab
    except ModuleNotFoundError:
        from jaxpt.runtime import install

        raise UserError(f"completion: shtab is not installed: {install.command('completion')}") from None
    whole = parser()
    for action in _actions(whole):
        if action.nargs != 0 and action.choices is None and action.type is None:  # all others may be files
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(whole, shell)


def completion(shell: str) -> None:
    """`jaxpt completion`."""
    print(script(shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser and of its subparsers."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                yield from _actions(subparser)
        else:
            yield action
