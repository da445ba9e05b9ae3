"""Stop strings: texts at which a generated text ends."""

from __future__ import annotations

from collections.abc import Iterable

from jaxpt.errors import UserError


class StopStrings:
    """Strings that end a generated text. The text stops before the first of them that is complete.

    Of several that end at the same character the longest counts. This depends on the text alone, not on how it was
    cut into tokens or how many of them came at once.

    Example:
      >>> stops = StopStrings(["\\n\\n", "User:"])
      >>> stops.first("yes\\nUser: and"), stops.held("yes\\nUs")
      (4, 2)
    """

    def __init__(self, strings: Iterable[str] = ()) -> None:
        """Takes the strings; none never stops.

        Raises:
          UserError: an empty one.
        """
        self.strings = tuple(dict.fromkeys(strings))
        if "" in self.strings:
            raise UserError("--stop: is empty; wants a text that ends the generation")

    def first(self, text: str) -> int | None:
        """Where the first complete stop string begins; None where there is none."""
        matches = [(start + len(stop), start) for stop in self.strings if (start := text.find(stop)) >= 0]
        return min(matches)[1] if matches else None

    def cut(self, text: str) -> str:
        """The text before the first complete stop string."""
        return text[: self.first(text)]

    def held(self, text: str) -> int:
        """Number of characters at the end of `text` that may begin a stop string."""
        longest = max(map(len, self.strings), default=1) - 1
        sizes = range(min(longest, len(text)), 0, -1)
        return next((n for n in sizes if any(stop.startswith(text[-n:]) for stop in self.strings)), 0)
