"""Patterns over the paths of parameters: what is trained, at which rate, with which decay.

A pattern holds for every path that it matches and for all below it; `*` stands for any characters, slashes included:

    *                                everything
    model/encoder, heads             a part of the tree
    */bias                           all biases
    model/encoder[8:]                layers 8 and above of a stack, counted from 0 over all its segments
    model/encoder[-2:]/attention/*   of its last two layers what is under `attention`
    model/encoder[0]/*/kernel        of its first layer all kernels

A range counts as in Python. After it comes a path within a layer, without `segment_…/block_…`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flax import traverse_util

from jaxpt.config.kinds import nearest
from jaxpt.errors import UserError

_IN_STACK = re.compile(r"(?P<stack>.+)/segment_(?P<segment>\d+)/block_(?P<block>\d+)/(?P<inner>.+)")
_RANGED = re.compile(r"(?P<stack>[^\[\]]+)\[(?P<first>-?\d+)?(?P<colon>:)?(?P<last>-?\d+)?\](/(?P<inner>[^\[\]]+))?")
Vectors = dict[str, np.ndarray]
"""{path: numbers}, [layers], or [] of a parameter without a layers axis."""
_EMBEDDING = re.compile(r"(?!.*head).*(embed|positions|relative|coder_bias|model/words/)")
_HEADS = ("heads/", "model/head/", "model/lm_head/", "model/output_bias", "model/vocab_bias")
_ENCODER = ("first", "encoder", "last")
"""DeBERTa's encoder may be several stacks, in this order; its convolution is parallel to the first."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A parameter of the tree that is not split, and the layers that it holds."""

    path: str
    axes: tuple[str | None, ...]
    stack: str | None = None
    """Path of its stack, None outside of stacks."""
    inner: str = ""
    """Its path within a layer."""
    layers: tuple[int, ...] | None = None
    """Their numbers in the stack; None of a parameter without a layers axis."""
    depth: int = 0
    """Layers of its stack."""
    above: int = 0
    """Layers above its stack, or above itself outside of stacks, where an encoder is several stacks."""

    @property
    def top(self) -> str | None:
        """Path of its stack in the model, also of a low-rank adapter."""
        return self.stack and self.stack.removeprefix("adapter/")

    @property
    def of_head(self) -> bool:
        """Of a head, what projects to the vocabulary alone, or a low-rank adapter of one."""
        return self.path.removeprefix("adapter/").startswith(_HEADS)

    @property
    def of_embeddings(self) -> bool:
        """Below all layers: tables of tokens and positions with their norms, and what reads a word's characters."""
        return self.stack is None and not self.of_head and bool(_EMBEDDING.match(self.path))

    @property
    def layers_above(self) -> np.ndarray:
        """How many layers are above each of its layers, or above itself."""
        return np.array(self.above) if self.layers is None else self.above + self.depth - 1 - np.array(self.layers)

    @property
    def empty_mask(self) -> np.ndarray:
        """False for each of its layers, or for itself."""
        return np.zeros(() if self.layers is None else len(self.layers), bool)


def leaves(shapes: Any, axes: Any) -> dict[str, Leaf]:
    """The parameters of a tree by path.

    Args:
      shapes: arrays or ShapeDtypeStructs, no segment split.
      axes: their logical axes.

    Returns:
      {path: parameter}.
    """
    flat, names = (traverse_util.flatten_dict(tree, sep="/") for tree in (shapes, axes))
    matches = {path: _IN_STACK.fullmatch(path) for path in flat}
    segments: dict[tuple[str, int], list[int]] = {}  # [blocks of a repetition, repetitions]
    for path, match in matches.items():
        if match:
            size = segments.setdefault((match["stack"], int(match["segment"])), [1, 1])
            size[0] = max(size[0], int(match["block"]) + 1)
            size[1] = flat[path].shape[0] if names[path][:1] == ("layers",) else size[1]

    depths: dict[str, int] = {}
    for (stack, _), (blocks, repeats) in segments.items():
        depths[stack] = depths.get(stack, 0) + blocks * repeats

    def above(stack: str) -> int:
        *network, name = stack.rpartition("/")
        higher = _ENCODER[_ENCODER.index(name) + 1 :] if name in _ENCODER else ()
        return sum(depths.get("".join([*network, other]), 0) for other in higher)

    def make_leaf(path: str, match: re.Match[str] | None) -> Leaf:
        if match is None:
            parallel = re.sub("convolution/.+", "first", path)
            return Leaf(path, names[path], above=depths[parallel] - 1 + above(parallel) if parallel in depths else 0)
        stack, segment = match["stack"], int(match["segment"])
        of_stack = stack, match["inner"]
        if names[path][:1] != ("layers",):
            return Leaf(path, names[path], *of_stack, None, depths[stack], above(stack))
        sizes = {n: blocks * repeats for (other, n), (blocks, repeats) in segments.items() if other == stack}
        first = sum(size for n, size in sizes.items() if n < segment) + int(match["block"])
        layers = tuple(range(first, first + sizes[segment], segments[stack, segment][0]))
        return Leaf(path, names[path], *of_stack, layers, depths[stack], above(stack))

    return {path: make_leaf(path, match) for path, match in matches.items()}


def select(pattern: str, tree: Mapping[str, Leaf], key: str) -> Vectors:
    """Of each parameter, for which of its layers a pattern holds.

    Args:
      pattern: see above.
      tree: what `leaves` gave.
      key: of the recipe, for messages.

    Returns:
      {path: bool [layers], or [] of a parameter without layers}.

    Raises:
      UserError: it is no pattern, or holds for nothing.

    Example:
      >>> tree = leaves({"model": {"encoder": {"segment_0": {"block_0": {"bias": np.zeros((4, 8))}}}}},
      ...     {"model": {"encoder": {"segment_0": {"block_0": {"bias": ("layers", "norm")}}}}})
      >>> select("model/encoder[-1:]", tree, "train.trainable")["model/encoder/segment_0/block_0/bias"]
      array([False, False, False,  True])
    """
    if "[" in pattern or "]" in pattern:
        masks = _of_layers(pattern, tree, key)
    else:
        matches = glob(pattern).fullmatch
        masks = {path: leaf.empty_mask | bool(matches(path)) for path, leaf in tree.items()}
    if not any(held.any() for held in masks.values()):
        raise UserError(f"{key}: {pattern!r} matches no parameter{_near(pattern, tree)}")
    return masks


def match_paths(patterns: Iterable[str], paths: Iterable[str], key: str | None = None) -> dict[str, bool]:
    """Of each path, whether one of some patterns without ranges of layers holds for it.

    Args:
      patterns: see above.
      paths: of parameters.
      key: of the recipe, for messages; None: no pattern is refused.

    Raises:
      UserError: a pattern holds for nothing.

    Example:
      >>> match_paths(["*/bias"], ["head/bias", "head/kernel"])
      {'head/bias': True, 'head/kernel': False}
    """
    mask = dict.fromkeys(paths, False)
    for pattern in patterns:
        matches = [path for path in mask if glob(pattern).fullmatch(path)]
        if key and not matches:
            raise UserError(f"{key}: {pattern!r} matches no trained parameter; '*/bias' are all biases")
        mask |= dict.fromkeys(matches, True)
    return mask


def union(patterns: Iterable[str], tree: Mapping[str, Leaf], key: str) -> Vectors:
    """Of each parameter, for which of its layers one pattern holds and none that begins with `!` does.

    Patterns with `!` alone are taken from everything.

    Args:
      patterns: see above.
      tree: what `leaves` gave.
      key: of the recipe, for messages.

    Returns:
      {path: bool [layers], or [] of a parameter without layers}.

    Raises:
      UserError: one of them is no pattern, or holds for nothing.
    """
    patterns = tuple(patterns)
    plain = [pattern for pattern in patterns if not pattern.startswith("!")] or ["*"]
    masks = {path: leaf.empty_mask for path, leaf in tree.items()}
    for pattern in plain:
        masks = {path: masks[path] | held for path, held in select(pattern, tree, key).items()}
    for pattern in patterns:
        if pattern.startswith("!"):
            masks = {path: masks[path] & ~held for path, held in select(pattern[1:], tree, key).items()}
    return masks


def product(factors: Iterable[tuple[str, float]], tree: Mapping[str, Leaf], key: str) -> Vectors:
    """Of each parameter, for each of its layers, the product of the factors of all patterns that hold.

    Args:
      factors: (pattern, factor).
      tree: what `leaves` gave.
      key: of the recipe, for messages.

    Returns:
      {path: float [layers], or []}.

    Raises:
      UserError: one of them is no pattern, or holds for nothing.
    """
    products = {path: np.ones(leaf.empty_mask.shape) for path, leaf in tree.items()}
    for pattern, factor in factors:
        for path, held in select(pattern, tree, key).items():
            products[path] = products[path] * np.where(held, factor, 1.0)
    return products


def to_patterns(held: Mapping[str, np.ndarray], tree: Mapping[str, Leaf]) -> list[str]:
    """The shortest patterns that hold for just some parameters: undoes `union`.

    Args:
      held: {path: bool [layers], or []} of the parameters that count; of others nothing is said.
      tree: what `leaves` gave.

    Returns:
      Patterns such as "heads" and "model/encoder[2:4]", in the order of the paths; [] for none.
    """
    stacks: dict[str, dict[tuple[str, int], bool]] = {}
    others: dict[str, bool] = {}
    for path, x in held.items():
        leaf = tree[path]
        if leaf.layers is None:
            others[path] = bool(x)
        else:
            stacks.setdefault(leaf.stack, {}).update(((leaf.inner, n), bool(y)) for n, y in zip(leaf.layers, x))
    patterns = _prefixes(others, tuple(stacks))
    for stack, flags in stacks.items():
        depth = max(n for _, n in flags) + 1
        whole = {n for n in range(depth) if all(y for (_, m), y in flags.items() if m == n)}
        patterns += [f"{stack}{at}" for at in _ranges(whole, depth)]
        for inner in sorted({name for name, _ in flags}):
            rest = {n for (name, n), y in flags.items() if name == inner and y} - whole
            patterns += [f"{stack}{at or '[:]'}/{inner}" for at in _ranges(rest, depth)]
    return sorted(patterns)


def _prefixes(held: Mapping[str, bool], stacks: tuple[str, ...], above: str = "") -> list[str]:
    """The shortest prefixes under which all paths are held, and no stack is."""
    prefixes = []
    for name in dict.fromkeys(path.removeprefix(above).split("/")[0] for path in held):
        prefix = f"{above}{name}"
        below = {path: x for path, x in held.items() if path == prefix or path.startswith(f"{prefix}/")}
        if all(below.values()) and not any(f"{stack}/".startswith(f"{prefix}/") for stack in stacks):
            prefixes.append(prefix)
        elif any(below.values()):
            prefixes += _prefixes(below, stacks, f"{prefix}/")
    return prefixes


def _ranges(layers: set[int], depth: int) -> list[str]:
    """Layers as ranges of a pattern; "" for all.

    Example:
      >>> _ranges({0, 1, 2, 5}, 6), _ranges({0, 1}, 2)
      (['[:3]', '[5]'], [''])
    """
    if len(layers) == depth:
        return [""]
    starts, ends = (sorted(n for n in layers if n + step not in layers) for step in (-1, 1))
    return [f"[{a}]" if a == b else f"[{a or ''}:{'' if b == depth - 1 else b + 1}]" for a, b in zip(starts, ends)]


def _of_layers(pattern: str, tree: Mapping[str, Leaf], key: str) -> Vectors:
    match = _RANGED.fullmatch(pattern)
    if match is None or (match["first"], match["colon"]) == (None, None):
        raise UserError(f"{key}: {pattern!r} is no pattern; layers are written as in model/encoder[8:]/*/kernel")
    stack, inner = glob(match["stack"], below=False), glob(match["inner"] or "*")
    first, last = (None if match[name] is None else int(match[name]) for name in ("first", "last"))
    masks = {path: leaf.empty_mask for path, leaf in tree.items()}
    for path, leaf in tree.items():
        if leaf.stack is None or not stack.fullmatch(leaf.stack) or not inner.fullmatch(leaf.inner):
            continue
        if leaf.layers is None:
            raise UserError(f"{key}: {pattern!r}: the layers of {leaf.stack} share their parameters")
        numbers = range(leaf.depth)[first:last] if match["colon"] else [first % leaf.depth]
        if not match["colon"] and not -leaf.depth <= first < leaf.depth:
            raise UserError(f"{key}: {pattern!r}: {leaf.stack} has the layers 0 to {leaf.depth - 1}")
        masks[path] = np.isin(leaf.layers, numbers)
    return masks


def glob(pattern: str, below: bool = True) -> re.Pattern[str]:
    """A pattern without a range as an expression that a whole path has to match; `below`: or the paths below it."""
    text = ".*".join(map(re.escape, pattern.split("*")))
    return re.compile(f"{text}(/.*)?" if below else text)


def _near(pattern: str, tree: Mapping[str, Leaf]) -> str:
    """The paths nearest to a pattern that holds for nothing."""
    names = {"/".join(path.split("/")[:n]) for path in tree for n in range(1, path.count("/") + 2)}
    stacks = {leaf.stack for leaf in tree.values() if leaf.stack}
    known = sorted(name for name in names | stacks if "/segment_" not in name)
    inner = sorted({f"*/{leaf.inner}" for leaf in tree.values() if leaf.stack})
    tops = ", ".join(sorted({path.split("/")[0] for path in tree}))
    bare_pattern = re.sub(r"\[.*?\]", "", pattern).removesuffix("/*")
    return nearest(bare_pattern, [*known, *inner], f"; the tree has: {tops}")
