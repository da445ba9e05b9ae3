"""What recipes take on the slices that they name, as one table, and the `# Plan:` lines at their heads.

Command: python tools/plan_recipes.py configs/pretrain/*.yaml [--out DIR] [--write | --check | --least GPU] [key=value]

Every recipe is compiled in processes of its own. Its report is kept as DIR/NAME.json: a recipe that is still the same
is not compiled again (delete DIR when the code has changed), and one that fails is a line of the table. Ends with code
1 if one fails, does not fit, leaves a large parameter whole on every device, or copies a donated buffer.

`--write` puts what was planned into the recipes' heads; `--check` compares instead. `--least h100` plans each for the
fewest machines of eight GPUs (1, 2, 4, …) that it fits, with parameters split over all devices that the recipe's other
axes leave. `key=value` holds for all of them.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.errors import UserError
from jaxpt.plan import command, program, show
from jaxpt.plan.program import Target

COLUMNS = (
    "recipe | slice | mesh | parameters | fits | peak GiB | of | compiled in s | a device sends, GB a step | bound | "
    "step ≥ | MFU ≤ | days ≥ | $ ≥ | large and whole | state in place"
)
MACHINES = (1, 2, 4, 8, 16, 32, 64, 128)
SHORT = {"all-gather": "gather", "all-reduce": "reduce", "reduce-scatter": "scatter", "collective-permute": "permute"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+", metavar="CONFIG | key=value")
    parser.add_argument("--out", type=Path, default=Path("runs/plans"), help="where reports are kept (runs/plans)")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--write", action="store_true", help="put the lines into the recipes")
    one.add_argument("--check", action="store_true", help="say which recipes' lines are others")
    one.add_argument("--least", metavar="GPU", help="for the fewest machines of eight such GPUs that fit: h100, …")
    given = parser.parse_intermixed_args()  # key=value after options as well
    overrides = [word for word in given.recipes if "=" in word]
    print(f"| {COLUMNS} |\n{'|---' * (COLUMNS.count('|') + 1)}|", flush=True)
    sound = True
    for path in (Path(word) for word in given.recipes if "=" not in word):
        try:
            if given.least:
                report = fewest(path, overrides, given.least, given.out)
            else:
                report = planned(configs.load(path, overrides), given.out / f"{path.stem}.json")
        except (UserError, RuntimeError) as error:
            print(f"| {path.stem} | {' '.join(str(error).split())[-300:]} |", flush=True)
            sound = False
            continue
        if report is None:
            continue
        sound &= all(good(phase) for phase in report["phases"])
        for row in rows(path.stem, report):
            print(f"| {' | '.join(row)} |", flush=True)
        text = path.read_text("utf-8")
        changed = with_line(text, line(report))
        if given.write:
            path.write_text(changed, "utf-8")
        elif given.check and changed != text:
            print(f"{path}: its head says something else than {line(report)!r}", file=sys.stderr)
            sound = False
    return 0 if sound else 1


def planned(config: Config, kept: Path) -> dict[str, Any] | None:
    """The report on a recipe, from its file if the recipe is the same; None for one that names no slice."""
    where = Target.of(config)
    if where.topology is None:
        return None
    digest = hashlib.sha256(configs.to_yaml(config).encode()).hexdigest()
    if kept.exists() and (report := json.loads(kept.read_text("utf-8")))["digest"] == digest:
        return report
    phases = [program.measure(config, where, phase) for phase in range(len(configs.phase_starts(config)))]
    report = {"digest": digest, **command.report(config, where, phases)}
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(report, indent=1), "utf-8")
    return report


def fewest(path: Path, overrides: Sequence[str], gpu: str, out: Path) -> dict[str, Any] | None:
    """The report on a recipe on the fewest machines that it fits, or on the most that were tried."""
    report = error = None
    for machines in MACHINES:
        where = f"plan.topology={gpu}:{machines}x8" if machines > 1 else f"plan.topology={gpu}:8"
        try:
            config = configs.load(path, ["mesh.data=1", "mesh.fsdp=-1", where, *overrides])
            report = planned(config, out / f"{path.stem}_{machines}.json")
        except UserError as found:  # a mesh or a batch that so many devices cannot share out
            error = found
            continue
        if report and all(phase["total"] <= phase["limit"] for phase in report["phases"]):
            return report
    if report is None and error:
        raise error
    return report


def good(phase: dict[str, Any]) -> bool:
    """Whether a phase passes the gates on its program."""
    return phase["total"] <= phase["limit"] and not phase["large_replicated_params"] and not copies(phase)


def copies(phase: dict[str, Any]) -> list[str]:
    """The donated arrays that are not updated in place."""
    return [f"{one['name']}: {one['reason']}" for one in phase["copied_donated_buffers"] if one["reason"] != "layout"]


def rows(name: str, report: dict[str, Any]) -> list[list[str]]:
    """A row of the table for each phase."""
    found = []
    for phase in report["phases"]:
        sent: collections.Counter[str] = collections.Counter()
        for one in phase["collectives"]:
            sent[SHORT.get(one["kind"], one["kind"])] += one["sent"]
        first = phase is report["phases"][0]
        found.append([
            name if first else f"{name}, phase {phase['phase'] + 1}",
            report["where"],
            " × ".join(f"{axis} {size}" for axis, size in phase["mesh"].items() if size > 1),
            f"{phase['parameters'] / 1e6:,.0f} M",
            "yes" if phase["total"] <= phase["limit"] else "NO",
            f"{phase['total'] / 2**30:.2f}",
            f"{phase['limit'] / 2**30:.2f}",
            f"{phase['seconds']:.0f}",
            ", ".join(f"{kind} {size / 1e9:.3g}" for kind, size in sent.most_common() if size > 5e6),
            phase["bound"]["by"],
            show.duration(phase["bound"]["seconds"]),
            f"{phase['bound']['mfu']:.0%}",
            show.rounded(report["cost"]["days"]) if first and report["cost"] else "",
            f"{report['cost']['dollars']:,.0f}" if first and report["cost"] else "",
            ", ".join(phase["large_replicated_params"]) or "none",
            f"{len(copies(phase))} arrays copied" if copies(phase) else "yes",
        ])  # fmt: skip
    return found


def line(report: dict[str, Any]) -> str:
    """What a recipe's head says of its plan."""
    phases, cost = report["phases"], report["cost"]
    peak, limit = max(phase["total"] for phase in phases) / 2**30, phases[0]["limit"] / 2**30
    bounds = [phase["bound"] for phase in phases]
    steps = " and ".join(f"{show.duration(b['seconds'])} ({b['by']}, MFU {b['mfu']:.0%})" for b in bounds)
    run = f"; {show.rounded(cost['days'])} days, ${cost['dollars']:,.0f}" if cost else ": does not fit"
    made = f" ({phases[0]['compiler']})" if phases[0]["compiler"] else ""
    return f"# Plan:     {report['where']}, {peak:.1f} of {limit:.1f} GiB: a step {steps} at best{run}{made}"


def with_line(text: str, plan: str) -> str:
    """A recipe with this line in its head, before what it expects."""
    text = re.sub(r"^# Plan:.*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^# Expected:", f"{plan}\n# Expected:", text, count=1, flags=re.MULTILINE)


if __name__ == "__main__":
    sys.exit(main())
