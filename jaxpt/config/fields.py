"""What all parts of a recipe are made of: a frozen class, and fields by their role and bounds."""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

from jaxpt.config.plain import leaves

PositiveInt = Annotated[int, Field(gt=0, lt=2**63)]
NonNegativeInt = Annotated[int, Field(ge=0, lt=2**63)]
Size = Annotated[int, Field(gt=0, lt=2**31)]
"""Of an axis of an array: ids and indices are int32."""
Layers = Annotated[int, Field(gt=0, le=10_000)]
PositiveFloat = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Kept = Literal["records", "program"]
"""What is kept on disk and found again: prepared records of `data`, and compiled training steps."""


def _pairs(value: Any) -> Any:
    """A mapping as hashable pairs of dotted key and value."""
    if isinstance(value, dict):
        pairs = tuple((key, _freeze(leaf)) for key, leaf in leaves(value))
        keys = [key for key, _ in pairs]
        if len(set(keys)) < len(keys):
            raise ValueError(f"{max(keys, key=keys.count)} is given twice")
        return pairs
    if isinstance(value, list):
        raise ValueError("wants a mapping of keys to values, such as {data.length: 512}")
    return value


def _language_code(value: str) -> str:
    if not re.fullmatch("[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*", value):
        raise ValueError(f"wants a language's code, such as de or zh-Hant, got {value!r}")
    return value


LanguageCode = Annotated[str, AfterValidator(_language_code)]
"""Such as `de` or `zh-Hant`."""


def _freeze(value: Any) -> Any:
    return tuple(map(_freeze, value)) if isinstance(value, list) else value


Overrides = Annotated[
    tuple[tuple[str, Any], ...],
    BeforeValidator(_pairs),
    PlainSerializer(lambda pairs: dict(pairs)),
    WithJsonSchema({"type": "object"}),
]
"""A mapping of (dotted) keys to values, hashable."""


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


def content(default: Any, **kwargs: Any) -> Any:
    """A field that names files: another path is fine on a resume if the files there have the same digests."""
    return Field(default, json_schema_extra={"role": "content"}, **kwargs)


def extensible(default: Any, **kwargs: Any) -> Any:
    """A field that says when a run ends: a finished run may be continued under a larger value."""
    return Field(default, json_schema_extra={"role": "extensible"}, **kwargs)


class Frozen(BaseModel):
    """A part of the tree: frozen, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, protected_namespaces=()
    )

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises AttributeError in one line; pydantic's error has several."""
        raise AttributeError(
            f"{type(self).__name__}.{name}: a configuration is frozen; load it with other values: "
            f"jaxpt.Config.load(path, **{{'….{name}': {value!r}}})"
        )


def plugin_modules(part: Any) -> set[str]:
    """Names of the modules, other than jaxpt's, that define parts of a recipe, at any depth."""
    if isinstance(part, tuple):
        return set().union(*map(plugin_modules, part))
    if not isinstance(part, Frozen):
        return set()
    modules = set().union(*(plugin_modules(getattr(part, name)) for name in type(part).model_fields))
    return modules | {name for name in [type(part).__module__] if name.partition(".")[0] != "jaxpt"}
