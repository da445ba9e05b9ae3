"""What the tests have cost, against the budget in tests/README.md: `python -m tests.costs FILE`.

FILE has a line {"part", "test", "cpu"} for each test: `JAXPT_TEST_COSTS=FILE pytest`.
"""

import collections
import json
import re
import sys
from pathlib import Path

README = Path(__file__).with_name("README.md")
DEAREST = 10


def budget(page):
    """{part: seconds of CPU} from the rows `| part | … | 123 s |` of a page.

    >>> budget("| `quick` | without a marker | 1,400 s |")
    {'quick': 1400}
    """
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([\d,]+) s \|$", page, re.M)
    return {part: int(seconds.replace(",", "")) for part, seconds in rows}


def report(rows, budgets):
    """Lines: the sum of each part beside its budget, and the dearest tests."""
    tests, seconds = collections.Counter(), collections.Counter()
    for row in rows:
        tests[row["part"]] += 1
        seconds[row["part"]] += row["cpu"]
    yield f"{'part':8} {'tests':>6} {'CPU s':>7} {'budget':>7}"
    for part in dict.fromkeys((*budgets, *seconds)):
        allowed = budgets.get(part, 0)
        over = "  over" if seconds[part] > allowed else ""
        yield f"{part:8} {tests[part]:6} {seconds[part]:7.0f} {allowed:7}{over}"
    yield f"{'sum':8} {tests.total():6} {seconds.total():7.0f} {sum(budgets.values()):7}"
    yield "the dearest tests, in seconds of CPU:"
    for row in sorted(rows, key=lambda row: -row["cpu"])[:DEAREST]:
        yield f"{row['cpu']:6.1f}  {row['part']:8} {row['test']}"


def main(file):
    rows = [json.loads(line) for line in Path(file).read_text("utf-8").splitlines()]
    print(*report(rows, budget(README.read_text("utf-8"))), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1])
