"""A program that ends while its records are being made by another process: `test_growing.py` runs it."""

import contextlib
import dataclasses
import multiprocessing
import sys
import time
from pathlib import Path

from jaxpt.data._tf import tf
from jaxpt.data.records import cache
from jaxpt.data.records.growing import grow
from jaxpt.runtime import background, signals
from jaxpt.runtime.progress import Progress

SHARDS = 3


@dataclasses.dataclass
class Shard:
    """So large that it is made by another process."""

    size: int = 1 << 30


@dataclasses.dataclass
class Endless:
    """The first shard has a record; the others never have their second one."""

    name: str = "endless"
    failure = None
    consumed = 0

    def open(self):
        return self

    def shards(self):
        return [Shard()] * SHARDS

    def dataset(self, number, shard):
        def records():
            yield {"tokens": [1, 2]}
            if number:
                Path(f"working-{number}").touch()
                time.sleep(1000)

        return tf.data.Dataset.from_generator(records, output_signature={"tokens": tf.TensorSpec([None], tf.int32)})

    def counts(self):
        return {"documents": 1}

    def check(self, counts):
        pass


def main(when: str) -> None:
    """Ends as `jaxpt train` does, when another process is at work ("begun") or while it starts ("starting"). When a
    "run" ends, the program goes on, and ends as a script does."""
    cache._STARTUP = 0.0
    with background.scope() if when == "run" else contextlib.nullcontext():
        store = grow(Endless(), Path("endless").absolute(), {}, Progress(), range)
        while when != "starting" and not list(Path().glob("working-*")):
            time.sleep(0.05)
        print("shards made:", store.ready(), flush=True)
    if when != "run":
        signals.finish(0)
    assert not multiprocessing.active_children()


if __name__ == "__main__":
    from tests.data.records import endless  # its classes are known to the other process by this name

    endless.main(sys.argv[1])
