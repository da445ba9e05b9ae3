"""What all parts of a recipe are made of: a frozen class, and fields by their role and bounds."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Kept = Literal["records", "program"]
"""What is kept on disk and found again: prepared records of `data`, and compiled training steps."""


@dataclasses.dataclass(frozen=True)
class Unaffected:
    """On a field, or a whole part: what is kept on disk that does not depend on it. On all others it depends."""

    kept: tuple[Kept, ...]


def unaffected(*kept: Kept) -> Unaffected:
    """Says of a field what is found again under another value of it: `Annotated[str, unaffected("program")]`."""
    return Unaffected(kept)


def execution(default: Any, **kwargs: Any) -> Any:
    """A field that changes how a run is carried out, not what it computes: free to change on a resume."""
    return Field(default, json_schema_extra={"role": "execution"}, **kwargs)


def extensible(default: Any, **kwargs: Any) -> Any:
    """A field that says when a run ends: a finished run may be continued under a larger value."""
    return Field(default, json_schema_extra={"role": "extensible"}, **kwargs)


class Frozen(BaseModel):
    """A part of the tree: frozen, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, protected_namespaces=()
    )
