"""The processes that a study starts: `python -m jaxpt.cli.children train`, or `measure WORDS`."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time

from jaxpt import cli
from jaxpt.errors import UserError
from jaxpt.runtime import exit_codes, plugins, process, signals
from jaxpt.runtime.stamp import stamped


def train() -> None:
    """Trains one run after another, so that imports and compiled functions are shared.

    It reads the words of a command line as JSON, a line each, until stdin ends. It runs `jaxpt` with them, and writes
    END and the exit code.
    """
    from jaxpt.study.finetunings import END

    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    signals.start()
    process.keep_freed_memory()
    for line in sys.stdin:
        try:
            code = cli.main(json.loads(line))
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        gc.collect()
        print(f"\n{END}{code or 0}", flush=True)  # a run's last line may have no end


def _follow(parent: int) -> None:
    """Ends with the study, however that ends: else this process would hold the run that the next one goes on with."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def measure(words: str) -> int:
    """Measures the steps of a study's row, and writes how many of them its minutes allow.

    Args:
      words: a line of JSON, {"recipe", "overrides", "minutes"}.

    Returns:
      The exit code (`jaxpt.runtime.exit_codes`). The line of an error is the last one.
    """
    signals.start()
    process.keep_freed_memory()
    from jaxpt.study import pace, recipes

    settings = json.loads(words)
    try:
        with signals.watch(), plugins.explained():
            budget = pace.write(recipes.load(settings["recipe"], settings["overrides"]), settings["minutes"])
    except (UserError, OSError) as error:
        print(stamped(f"jaxpt: {error}"), file=sys.stderr, flush=True)
        return exit_codes.of(error)
    print(pace.described(budget), flush=True)
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "train":
        train()
    else:
        signals.finish(measure(sys.argv[2]))
