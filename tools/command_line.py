"""What tools do with mistakes on their command lines: one line, exit code 2."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from jaxpt.cli.parsing import count, numbers  # noqa: F401
from jaxpt.errors import UserError


@contextlib.contextmanager
def one_line() -> Iterator[None]:
    """Ends the process at a mistake that jaxpt names; also a decorator."""
    try:
        yield
    except UserError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(2)


def names(known: Collection[str]) -> Callable[[str], list[str]]:
    """An argument's type: some of the known names, with commas between."""

    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := [name for name in chosen if name not in known]:
            raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}; there are {', '.join(known)}")
        return chosen

    return parse


def existing(text: str) -> Path:
    """An argument's type: a file that is there."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return Path(text)
