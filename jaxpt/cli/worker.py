"""A process that trains one run after another, so that imports and compiled functions are shared.

It reads the words of a command line as JSON, a line each, runs `jaxpt` with them, and writes END and the exit code.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time

from jaxpt import cli
from jaxpt.runtime import allocator, signals
from jaxpt.study.finetunings import END


def main() -> None:
    """Runs commands from stdin until it ends."""
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    signals.start()
    allocator.keep_freed_memory()
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


if __name__ == "__main__":
    main()
