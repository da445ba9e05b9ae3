"""A trace of chosen steps, for xprof and Perfetto, and a short table of where their time went.

    profile: {first: 10, steps: 3}        →  run_dir/profile

An operation's part of the model is read off its name in the compiled program: the modules on the way to it. Its time is
its own, without that of the operations inside of it (a loop has its body in it).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxpt.config import ProfileConfig
from jaxpt.train.display import say

MOST = 12
"""Lines of the table."""
_STEPS = {
    "while", "body", "cond", "closed_call", "eval_jaxpr", "shard_map", "checkpoint", "remat", "branch_0_fun",
    "branch_1_fun", "",
}  # fmt: skip
"""What calls are named where they are no modules, by jax 0.10 and 0.11."""
_DERIVED = re.compile(r"^(?:transpose\()?jvp\((\w+)\)+$")
_NUMBERED = re.compile(r"^(segment|block)_\d+$")


class Event(NamedTuple):
    """One execution of an operation."""

    name: str
    start: float
    """In nanoseconds."""
    end: float


class Profile:
    """Traces the chosen steps of a run."""

    def __init__(self, config: ProfileConfig | None, run_dir: Path, step: Any) -> None:
        """`step`: the compiled step, whose text names the operations."""
        self._config, self._folder, self._step, self._is_on = config, run_dir / "profile", step, False
        self._last: tuple[int, Any] | None = None

    def before(self, step: int) -> None:
        """Called before a step is started; `step` is its number, from 1."""
        if self._config is not None and step == self._config.first:
            jax.profiler.start_trace(str(self._folder), create_perfetto_trace=True)
            self._is_on = True

    def after(self, step: int, figures: Any) -> None:
        """Called when a step is started; `figures` are made at its end."""
        if self._is_on:
            self._last = step, figures
            if step == self._config.last:
                self.stop()

    def stop(self) -> None:
        """Ends a trace that is under way, and shows the table of its steps; the end of a phase cuts a trace short."""
        if not self._is_on:
            return
        self._is_on = False
        if self._last is not None:
            jax.block_until_ready(self._last[1])
        jax.profiler.stop_trace()
        if self._last is not None and jax.process_index() == 0:
            for line in report(self._folder, self._step, f"steps {self._config.first}–{self._last[0]}"):
                say(line)


def report(folder: Path, step: Any, steps: str) -> list[str]:
    """The table of the newest trace.

    Args:
      folder: where the traces are.
      step: the compiled step.
      steps: which they are, for people.

    Returns:
      Lines: part of the model, share of the forward and of the backward pass.
    """
    newest = max(folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    try:
        text = step.as_text()
    except Exception:  # a step that was loaded has no text
        text = ""
    names, data = op_names(text), jax.profiler.ProfileData.from_file(str(newest))
    lines = device_lines(data, module_of(text))
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for line in lines:
        for name, self_time in self_times(line):
            seconds[place(names.get(name, ""))] += self_time
    total = sum(seconds.values())
    where = f"trace of {steps}, for xprof and ui.perfetto.dev: {newest.parent.relative_to(folder.parent)}"
    return [where, *table(seconds)] if total else [where, "  it has no operations of a device"]


def table(seconds: Mapping[tuple[str, str], float]) -> list[str]:
    """Lines of parts with their shares, the largest first.

    Args:
      seconds: {(part, "forward" or "backward"): seconds}.

    Example:
      >>> table({("encoder/attention", "forward"): 1.0, ("encoder/attention", "backward"): 2.0, ("", "forward"): 1.0})
      ['  forward backward', '    25.0%    50.0%  encoder/attention', '    25.0%           other']
    """
    total, parts = sum(seconds.values()), {part for part, _ in seconds}
    of_part = {part: [seconds.get((part, way), 0.0) for way in ("forward", "backward")] for part in parts}
    largest = sorted(of_part, key=lambda part: -sum(of_part[part]))
    top_parts = [part for part in largest if part][:MOST]
    rest = [sum(of_part[part][way] for part in parts if part not in top_parts) for way in (0, 1)]
    rows = [(part, of_part[part]) for part in top_parts] + [("other", rest)] * (sum(rest) > 0)
    return ["  forward backward"] + [
        f"  {_share(forward, total):>7} {_share(backward, total):>8}  {part}" for part, (forward, backward) in rows
    ]


def _share(part: float, total: float) -> str:
    return f"{100 * part / total:.1f}%" if part else ""


def place(op_name: str) -> tuple[str, str]:
    """The part of the model and the pass that an operation belongs to.

    Args:
      op_name: path of calls in the compiled program.

    Returns:
      (modules by name, without numbers of layers; "" where there are none, "forward" or "backward").

    Example:
      >>> place("jit(step)/transpose(jvp(T5.decode))/decoder/while/body/block_1/feed_forward/dot_general")
      ('decoder/feed_forward', 'backward')
      >>> place("jit(step)/optimizer/mul"), place("jit(step)/jvp(loss)/dot_general")
      (('optimizer', 'forward'), ('loss', 'forward'))
    """
    modules = [
        part
        for part in (_DERIVED.sub(r"\1", part) for part in op_name.split("/")[:-1])
        if part not in _STEPS and not set("()") & set(part) and not _NUMBERED.match(part)
    ]
    return "/".join(modules[:2]), "backward" if "transpose(" in op_name else "forward"


def op_names(text: str) -> dict[str, str]:
    """{instruction: path of calls} of a compiled program.

    Args:
      text: its HLO.

    Example:
      >>> op_names('  %dot.3 = f32[2]{0} dot(%a, %b), metadata={op_name="jit(step)/head/dot_general"}')
      {'dot.3': 'jit(step)/head/dot_general'}
    """
    matches = re.findall(r'^\s*(?:ROOT )?%?([\w.-]+) = .*?op_name="([^"]*)"', text, re.MULTILINE)
    return dict(matches)


def module_of(text: str) -> str:
    """The name of a compiled program; "" if it has no text.

    Args:
      text: its HLO.

    Example:
      >>> module_of("HloModule jit_step, is_scheduled=true")
      'jit_step'
    """
    match = re.match(r"HloModule ([^\s,]+)", text)
    return match[1] if match else ""


def device_lines(data: Any, module: str = "") -> list[list[Event]]:
    """The operations of each queue or thread of the devices of a trace.

    Args:
      data: `jax.profiler.ProfileData`.
      module: only those of this program, where the trace says whose they are: an evaluation between two steps has
        operations of the same names.
    """
    planes = list(data.planes)
    devices = [plane for plane in planes if plane.name.startswith("/device:")] or planes
    event_lines = []
    for plane in devices:
        lines = list(plane.lines)
        lines = [line for line in lines if line.name == "XLA Ops"] or lines  # TPUs have lines of modules and steps too
        for line in lines:
            events = [
                Event(str(stats["hlo_op"]), event.start_ns, event.start_ns + event.duration_ns)
                for event, stats in ((event, dict(event.stats)) for event in line.events)
                if stats.get("hlo_op") and (not module or stats.get("hlo_module", module) == module)
            ]
            if events:
                event_lines.append(events)
    return event_lines


def self_times(events: Iterable[Event]) -> list[tuple[str, float]]:
    """(operation, time that it took itself) of a line on which operations lie in one another.

    Example:
      >>> self_times([Event("while", 0, 10), Event("dot", 1, 4), Event("add", 5, 6)])
      [('while', 6), ('dot', 3), ('add', 1)]
    """
    times: list[list[Any]] = []
    open_: list[int] = []
    ordered = sorted(events, key=lambda event: (event.start, -event.end))
    for index, event in enumerate(ordered):
        while open_ and ordered[open_[-1]].end <= event.start:
            open_.pop()
        if open_:
            times[open_[-1]][1] -= event.end - event.start
        times.append([event.name, event.end - event.start])
        open_.append(index)
    return [(name, self_time) for name, self_time in times]
