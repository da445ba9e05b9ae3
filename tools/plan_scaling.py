"""What a device does as devices are added, with the same rows on each: FLOPs and bytes that it sends, by plan.

Command: python tools/plan_scaling.py CONFIG ROWS TOPOLOGY … [key=value …]
Example: python tools/plan_scaling.py configs/pretrain/bert_base.yaml 8 v5p:2x2x2 v5p:4x4x4 v5p:8x8x16 mesh.fsdp=8

Theory, for a mesh of data d × fsdp f and W bytes of gathered parameters: every pass over the layers gathers W·(f-1)/f,
their gradients are scattered once, W·(f-1)/f, and summed over data, 2·W/f·(d-1)/d. Only the last depends on d, and
tends to 2·W/f; nothing may grow with the number of devices.

On a mesh of fsdp alone libtpu 0.0.51 sends more, all of it over fsdp. A layer's weights go round the ring in a loop
that multiplies as it goes, whose last turn sends what nobody needs: (f+1)/(f-1) times the bytes of a gather, 9/7 at f
= 8. The float32 gradients of vocabulary tables are summed whole on every device, 2·(f-1)/f of a table, where a
reduce-scatter would do (a barrier behind the sum, or an explicit `psum_scatter`, is compiled to the same); with data
beside fsdp a part of these sums goes over both. BERT base, 8 rows a v5p, f = 8: 994 MB over fsdp on 8 chips; on 64
699 over fsdp, 58 over data and 220 over both.
"""

from __future__ import annotations

import argparse
import collections

import command_line

from jaxpt.config import load
from jaxpt.plan import program, topologies


@command_line.one_line()
def main(path: str, rows: int, names: list[str], overrides: list[str]) -> None:
    print("| topology | devices | mesh | TFLOP a device | sent over fsdp, MB | over data, MB | both, MB | peak GiB |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        size = topologies.parse(name).size
        config = load(path, ["train.phases=[]", *overrides, f"data.batch_size={rows * size}"])
        one = program.measure(config, program.Target(name))
        sent: collections.Counter[str] = collections.Counter()
        for collective in one.collectives:
            sent["+".join(collective["axes"])] += collective["sent"]
        mesh = " × ".join(f"{axis} {n}" for axis, n in one.mesh.items() if n > 1)
        moved = " | ".join(f"{sent[axes] / 1e6:.1f}" for axes in ("fsdp", "data", "data+fsdp"))
        flops = one.program_flops / one.devices / 1e12
        print(f"| {name} | {size} | {mesh} | {flops:.3f} | {moved} | {one.total / 2**30:.2f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", metavar="CONFIG")
    parser.add_argument("rows", metavar="ROWS", type=command_line.count)
    parser.add_argument("words", metavar="TOPOLOGY|key=value", nargs="+")
    given = parser.parse_args()
    names, overrides = ([word for word in given.words if ("=" in word) == is_key] for is_key in (False, True))
    main(given.config, given.rows, names, overrides)
