"""Limits of the system (`ulimit`) under which libraries crash or hang rather than say what they lack."""

from __future__ import annotations

import resource

from jaxpt.errors import UserError

MIN_BYTES = 3_000_000_000
"""Address space that JAX and TensorFlow take before they do anything; not all of it is ever memory."""


def check() -> None:
    """Raises UserError where the address space is too small to load the libraries in."""
    for number, name, command in (
        (resource.RLIMIT_AS, "address space", "ulimit -v"),
        (resource.RLIMIT_DATA, "data segment", "ulimit -d"),
    ):
        limit, _ = resource.getrlimit(number)
        if limit != resource.RLIM_INFINITY and limit < MIN_BYTES:
            raise UserError(
                f"{command}: the {name} of a process is limited to {limit / 1e9:.1f} GB; JAX and TensorFlow want "
                f"{MIN_BYTES / 1e9:.1f} GB or more: {command} unlimited"
            )
