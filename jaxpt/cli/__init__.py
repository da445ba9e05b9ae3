"""The command line."""

from jaxpt.cli.commands import main, parser, start

__all__ = ["main", "parser", "start"]
