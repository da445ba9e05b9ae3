"""Where the time goes from the command to the first step: `jaxpt train RECIPE --timings`."""

from __future__ import annotations

import time
from typing import NamedTuple

import psutil
from jax import monitoring

from jaxpt.train.programs import Programs

_EVENTS = {"/jax/compilation_cache/cache_hits": "hits", "/jax/compilation_cache/cache_misses": "misses"}


class Part(NamedTuple):
    """What the main thread did between two marks."""

    name: str
    seconds: float


class Timings:
    """A clock with marks: each ends a part of the start.

    Without `wanted` it takes notes of nothing and says nothing.

    Example:
      >>> timings = Timings(wanted=True)
      >>> timings.mark("imports")
      >>> [part.name for part in timings.parts]
      ['imports']
    """

    def __init__(self, wanted: bool = False, begun: float | None = None) -> None:
        """The clock began with the process; the compilation cache is watched from now on.

        Args:
          wanted: whether there is a table.
          begun: when the command began, as `time.monotonic` says it; None: now. The run's wall time counts from there.
        """
        self.wanted = wanted
        self.begun = time.monotonic() if begun is None else begun
        self.parts: list[Part] = []
        self._cache = {"hits": 0, "misses": 0}
        if wanted:
            self._last = time.monotonic() - (time.time() - psutil.Process().create_time())
            monitoring.register_event_listener(self._see)

    def _see(self, event: str, **_: object) -> None:
        if event in _EVENTS:
            self._cache[_EVENTS[event]] += 1

    def mark(self, name: str) -> None:
        """Ends a part: what was done since the mark before."""
        if self.wanted:
            now = time.monotonic()
            self.parts.append(Part(name, now - self._last))
            self._last = now

    def end(self, programs: Programs) -> list[str]:
        """Ends the clock; later marks have no effect.

        Args:
          programs: of the run's first phase, made beside the parts.

        Returns:
          The table, a line each: seconds and part; then what other threads did meanwhile.
        """
        if not self.wanted:
            return []
        self.wanted = False
        monitoring.unregister_event_listener(self._see)
        rows = [f"{part.seconds:7.1f} s  {part.name}" for part in self.parts]
        known = self._cache["hits"] + self._cache["misses"]
        cached = (
            f"{self._cache['hits']} of {known} programs were in the compilation cache"
            if known
            else "no compilation cache"
        )
        total = sum(part.seconds for part in self.parts)
        return [
            f"from the command to the end of the first step: {total:.1f} s",
            *rows,
            f"  beside the data: {programs.trace_seconds:.1f} s tracing and {programs.compile_seconds:.1f} s compiling "
            f"the step; {cached}",
        ]
