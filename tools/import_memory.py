"""Imports a random GPT-2 of 1.5 billion parameters, exports it again, and says how much memory each took.

python tools/import_memory.py DIR       (needs about 20 GB there, removed at the end)
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))


def make(directory: Path) -> int:
    """Writes the directory, a tensor at a time; returns its bytes."""
    import json

    import numpy as np
    import yaml

    from jaxpt.hf import directory as hf
    from jaxpt.hf import files, mapping
    from jaxpt.hf.options import to_json
    from jaxpt.models import stored
    from jaxpt.models.gpt2 import GPT2Config

    config = GPT2Config(**yaml.safe_load((ROOT / "configs/models/gpt2_1558m.yaml").read_text())["model"])
    family = hf.family_of(config)
    table = family.table(config)
    announced = mapping.announced(dict.fromkeys(stored.stored_params(config), np.float32), table, config)
    block = np.random.default_rng(0).standard_normal(1 << 20, np.float32) * np.float32(0.02)

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        for index, (name, (shape, _)) in enumerate(announced.items()):
            yield name, np.resize(np.roll(block, index), shape)  # as good as random, and no two alike

    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(to_json(family, config)))
    return sum(path.stat().st_size for path in files.write(directory, announced, tensors(), 2 * 10**9))


def measured(*arguments: str) -> tuple[float, float]:
    """(seconds, peak resident bytes) of `jaxpt …` in a process of its own."""
    begun = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "jaxpt", *arguments], cwd=ROOT)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"jaxpt {' '.join(arguments)} failed")
    return time.perf_counter() - begun, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Makes, imports, exports, compares, removes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", metavar="DIR", type=Path)
    work = parser.parse_args().directory.resolve() / "import_memory"  # `measured` starts elsewhere
    from jaxpt.hf.files import Tensors

    shutil.rmtree(work, ignore_errors=True)
    try:
        size = make(work / "hf")
        print(f"random directory: {size / 1e9:.2f} GB in {len(list((work / 'hf').glob('*.safetensors')))} files")
        for command, source, target in (("import", "hf", "run"), ("export", "run", "out")):
            seconds, peak = measured(command, str(work / source), str(work / target))
            print(f"jaxpt {command}: {seconds:.0f} s, peak memory {peak / 1e9:.2f} GB")
        before, after = Tensors(work / "hf"), Tensors(work / "out")
        same = set(before) == set(after) and all((before[name] == after[name]).all() for name in before)
        print(f"all {len(before)} tensors equal after import and export: {same}")
        print(f"this process: peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9:.2f} GB")
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
