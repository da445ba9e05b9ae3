"""What all parts of a recipe are made of: a frozen class, and fields by their role and bounds."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


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
