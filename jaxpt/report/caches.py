"""`jaxpt cache`: makes a recipe's records before its run, and lists the cache."""

from __future__ import annotations

import math
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from jaxpt.config import Config, phase_configs, without_unfreezing
from jaxpt.errors import UserError
from jaxpt.evals.baseline import baseline
from jaxpt.train.preflight import check_repeated_files

_TOKENS = ("encoder_input_tokens", "decoder_target_tokens")


def cache(
    config: Config, workers: int | None = None, verify: bool = False, beam: str | None = None,
    batches: int | None = None, out: str | None = None,
) -> None:  # fmt: skip
    """Makes the records of all phases of a recipe, or finds them, and prints what they are.

    Args:
      config: the recipe.
      workers: processes; by default one for each core. They make the same bytes, however many they are.
      verify: compare the checksums of all files; damaged ones are named and made again.
      beam: options of an Apache Beam pipeline that makes them instead, as on a command line.
      batches: write the batches of so many steps instead.
      out: a new directory for these.

    Raises:
      UserError: the text cannot be read or gives no record, two paths name one file, or the disk is full.
    """
    if (batches is None) != (out is None):
        raise UserError("--batches STEPS and --out DIR go together")
    for phase_config in phase_configs(config):
        check_repeated_files(phase_config)
    options = None if beam is None else shlex.split(beam)
    if batches is not None:
        write_batches(config, batches, out, workers=workers, verify=verify, beam=options)
        return
    from jaxpt.data.datasets import prepare

    report = None if sys.stderr.isatty() else print
    config = without_unfreezing(config)
    for phase in range(max(len(config.train.phases), 1)):
        begun = time.monotonic()
        data = prepare(config, phase, report, save=False, workers=workers, verify=verify, beam=options)
        seconds = time.monotonic() - begun
        for split, store in data.stores.items():
            size = sum(shard["size"] for shard in store.manifest["shards"])
            counts = ", ".join(f"{count:,} {name}" for name, count in data.summary[split].items() if count)
            print(f"{split}: {counts}; {size / 1e6:.1f} MB in {len(store.manifest['shards'])} shards")
            print(f"  {store.directory}")
        suffix = f" for phase {phase + 1}" if config.train.phases else ""
        print(f"ready{suffix} after {seconds:.1f} s{', every checksum compared' if verify else ''}")


def write_batches(config: Config, steps: int, out: str, **preparing: Any) -> None:
    """Writes the batches of a recipe's first steps into a directory, and prints what they take.

    Args:
      config: the recipe.
      steps: how many.
      out: the directory.
      **preparing: how the records are made: workers, verify and beam of `datasets.prepare`.

    Raises:
      UserError: it is there already, or as `cache`.
    """
    from jaxpt.data.batches import write

    begun = time.monotonic()
    manifest = write.write_batches(config, steps, out, baseline, None if sys.stderr.isatty() else print, **preparing)
    for index, phase in enumerate(manifest.phases, 1):
        prefix = f"phase {index}: " if len(manifest.phases) > 1 else ""
        size, rows = sum(phase.train.files.values()), phase.train.rows
        tokens = sum(rows * math.prod(shape) for name, (shape, _) in phase.features.items() if name in _TOKENS)
        per_token = f", {size / tokens:.2f} MB for a million tokens" if tokens else ""
        print(
            f"{prefix}{phase.steps:,} steps, {rows:,} rows, {size / 1e6:.2f} MB{per_token}; "
            + ", ".join(f"{held.rows:,} validation rows of {name}" for name, held in phase.validation.items())
        )
    size = sum(file.stat().st_size for file in Path(out).rglob("*") if file.is_file())
    print(f"{out}: {size / 1e6:.2f} MB after {time.monotonic() - begun:.1f} s; to train from it: jaxpt train RECIPE "
          f"data.source=batches data.path={shlex.quote(out)}")  # fmt: skip
