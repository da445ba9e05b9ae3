"""A process that measures the steps of a study's row, and writes how many of them its minutes allow.

It reads a line of JSON, {"recipe", "overrides", "minutes"}, as its only argument.
"""

from __future__ import annotations

import json
import sys

from jaxpt.errors import UserError
from jaxpt.runtime import allocator, exit_codes, plugins, signals
from jaxpt.runtime.stamp import stamped


def main() -> int:
    """Measures; returns the exit code (`jaxpt.runtime.exit_codes`). The line of an error is the last one."""
    signals.start()
    allocator.keep_freed_memory()
    from jaxpt.study import pace, recipes

    words = json.loads(sys.argv[1])
    try:
        with signals.watch(), plugins.explained():
            budget = pace.write(recipes.load(words["recipe"], words["overrides"]), words["minutes"])
    except (UserError, OSError) as error:
        print(stamped(f"jaxpt: {error}"), file=sys.stderr, flush=True)
        return exit_codes.of(error)
    print(pace.described(budget), flush=True)
    return 0


if __name__ == "__main__":
    signals.finish(main())
