"""Jinja in a sandbox that bounds depth, steps, sizes and output: a template is a program from elsewhere.

Jinja's own sandbox keeps a template from Python's internals, not from running or growing without end. Here every loop
pass, call, filter and operator is counted, and a value is measured before it is made where an operation can make a
large one of small ones. The bounds grow with the input, so a long dialogue is no reason to refuse a template.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jinja2 import compiler, nodes, sandbox
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.runtime import Context, Undefined
from jinja2.utils import Namespace, pass_context

MAX_SOURCE = 200_000
"""Characters of a template; the longest published chat templates have about 30,000."""
MAX_STEPS, STEPS_OF_A_CHARACTER = 2_000_000, 4
"""Steps of a rendering, and how many more for each character of its input."""
MAX_SIZE, SIZE_OF_A_CHARACTER = 10_000_000, 16
"""Characters of the output and of any value, and how many more for each character of the input."""
ELEMENT = 64
"""Characters that an element of a list counts for."""
MAX_BITS = 65_536
"""Maximum number of bits of a whole number."""
COPIED, READ = 1024, 16
"""Characters that an operator, and a filter, handles in a step."""

_GROWING = frozenset((
    "batch", "center", "expandtabs", "indent", "ljust", "rjust", "round", "slice", "sub", "tojson", "translate",
    "truncate", "zfill",
))  # fmt: skip
"""Methods and filters whose result can be as large as the product of their arguments."""
_REFUSED = ("pprint", "striptags", "urlize", "wordwrap", "xmlattr")
"""Filters for HTML and for debugging, slow on long texts."""
_WIDE = re.compile(r"\d{5}|\*|{[^}]*{")
"""Matches a format with a field width of five digits, or with one from an argument."""
_budget: contextvars.ContextVar[_Budget | None] = contextvars.ContextVar("budget", default=None)


@dataclasses.dataclass
class _Budget:
    """Counts what one rendering has done, and ends it at its bounds."""

    max_steps: int
    max_size: int
    steps: int = 0

    def spend(self, steps: int) -> None:
        self.steps += steps
        if self.steps > self.max_steps:
            raise SecurityError(f"takes more than {self.max_steps:,} steps; it loops too often")

    def allow(self, size: int) -> int:
        if size > self.max_size:
            raise SecurityError(f"makes a text or a list of more than {self.max_size:,} characters")
        return size


@contextlib.contextmanager
def bounded(values: Mapping[str, Any]) -> Iterator[None]:
    """Allows, within it, one rendering of a template of a `Sandbox`.

    Args:
      values: the template's variables.
    """
    size = _size(dict(values))
    budget = _Budget(MAX_STEPS + size * STEPS_OF_A_CHARACTER, MAX_SIZE + size * SIZE_OF_A_CHARACTER)
    token = _budget.set(budget)
    try:
        yield
    finally:
        _budget.reset(token)


def compiled(compile_source: Callable[[str], Any], source: str) -> Any:
    """Compiles a template or an expression.

    Args:
      compile_source: `from_string` or `compile_expression` of a `Sandbox`.
      source: Jinja.

    Returns:
      What `compile_source` returns.

    Raises:
      TemplateSyntaxError: it is no Jinja, too long, or nested too deeply for Jinja or Python.

    Example:
      >>> compiled(Sandbox().from_string, "{{ " + "(" * 5000 + ")" * 5000 + " }}")
      Traceback (most recent call last):
      jinja2.exceptions.TemplateSyntaxError: is nested too deeply
        line 1
    """
    if len(source) > MAX_SOURCE:
        raise TemplateSyntaxError(f"has {len(source):,} characters, at most {MAX_SOURCE:,} are read", 1)
    try:
        return compile_source(source)
    except TemplateSyntaxError:
        raise
    except (RecursionError, MemoryError, SyntaxError, OverflowError, ValueError):  # Jinja's parser, then Python's
        raise TemplateSyntaxError("is nested too deeply", 1) from None


class Sandbox(sandbox.ImmutableSandboxedEnvironment):
    """An environment whose templates are rendered within `bounded`.

    Example:
      >>> template = Sandbox().from_string("{{ 'x' * 10 ** 9 }}")
      >>> with bounded({}):
      ...     template.render()
      Traceback (most recent call last):
      jinja2.exceptions.SecurityError: makes a text or a list of more than 10,001,024 characters
    """

    intercepted_binops = frozenset(sandbox.SandboxedEnvironment.default_binop_table)

    def __init__(self, filters: Mapping[str, Callable[..., Any]] | None = None, **settings: Any) -> None:
        """Makes an environment.

        Args:
          filters: further filters by name.
          **settings: of Jinja's environment.
        """
        super().__init__(finalize=pass_context(lambda context, value: self.measured(value)), **settings)
        self.filters |= filters or {}
        for name in _REFUSED:
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters = {name: _counted(name, function) for name, function in self.filters.items()}
        self.tests = {name: _counted(name, function) for name, function in self.tests.items()}

    def measured(self, value: Any) -> Any:
        """Returns a value after it was measured."""
        budget = _current()
        budget.spend(1 + budget.allow(_size(value)) // COPIED)
        return value

    def count_steps(self, steps: int) -> str:
        """Counts the steps of a pass of a loop or of a macro."""
        _current().spend(steps)
        return ""

    def concat(self, pieces: Iterable[str]) -> str:
        """Joins the output of a template, a macro or a block."""
        budget, size, read = _current(), 0, []
        for piece in pieces:
            size = budget.allow(size + len(piece))
            read.append(piece)
        budget.spend(len(read) // READ + size // COPIED)
        return "".join(read)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Applies an operator, and bounds its result."""
        budget = _current()
        if operator == "+":
            budget.allow(_size(left) + _size(right))
        elif operator == "*":
            budget.allow(_product(left, right))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * max(right, 0))
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        return self.measured(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __function: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls a function or method, and bounds its arguments and result."""
        if __function == __self.count_steps:
            return __function(*args)
        method = getattr(__function, "__wrapped__", __function)  # Jinja wraps `str.format`
        base = getattr(method, "__self__", None)
        if not isinstance(base, (str, bytes, list, tuple, dict, int, float)):
            base = None
        name = getattr(__function, "__name__", "")
        args = _read(name, args)
        _check_call(name, base, args, kwargs)
        return __self.measured(super().call(__context, __function, *args, **kwargs))

    class code_generator_class(compiler.CodeGenerator):
        """Writes the counting into a template's code."""

        def visit_For(self, node: nodes.For, frame: Any) -> None:
            _count_passes(node)
            super().visit_For(node, frame)

        def macro_body(self, node: Any, frame: Any) -> Any:
            _count_passes(node)
            return super().macro_body(node, frame)

        def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:
            self.write("environment.concat(map(str, ")
            self.visit(nodes.Tuple(node.nodes, "load"), frame)
            self.write("))")

        def visit_Compare(self, node: nodes.Compare, frame: Any) -> None:
            self.write("(environment.measured(")
            self.visit(node.expr, frame)
            for operand in node.ops:
                self.write(f") {compiler.operators[operand.op]} environment.measured(")
                self.visit(operand.expr, frame)
            self.write("))")

        def _measured(visit: Callable[..., None]) -> Callable[..., None]:
            def visit_measured(self: Any, node: Any, frame: Any, **options: Any) -> None:
                is_made = getattr(node, "ctx", "load") == "load"
                self.write("environment.measured(" if is_made else "")
                visit(self, node, frame, **options)
                self.write(")" if is_made else "")

            return visit_measured

        # Slices and literals make values without a call.
        visit_Getitem = _measured(compiler.CodeGenerator.visit_Getitem)
        visit_List = _measured(compiler.CodeGenerator.visit_List)
        visit_Tuple = _measured(compiler.CodeGenerator.visit_Tuple)
        visit_Dict = _measured(compiler.CodeGenerator.visit_Dict)


def _count_passes(node: Any) -> None:
    """Puts a statement before a body that counts its nodes as steps."""
    weight = sum(1 for part in node.body for _ in part.find_all(nodes.Node)) + 1
    count = nodes.Call(nodes.EnvironmentAttribute("count_steps"), [nodes.Const(weight)], [], None, None)
    node.body.insert(0, nodes.ExprStmt(count, lineno=node.lineno))


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a filter or test so that its arguments and its result are measured."""

    @functools.wraps(function)  # also Jinja's mark that a function wants the context
    def call(*args: Any, **kwargs: Any) -> Any:
        first = 1 if hasattr(function, "jinja_pass_arg") else 0
        args = _read(name, args)
        _check_call(name, args[first] if len(args) > first else None, args[first + 1 :], kwargs)
        result = function(*args, **kwargs)
        budget = _current()
        budget.spend(1 + budget.allow(_size(result)) // READ)
        return result

    return call


def _read(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of `join`, whose result depends on how many texts come out of a generator, with lists for those."""
    return tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args) if name == "join" else args


def _check_call(name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Counts a call of a method or filter, and raises SecurityError where its result could be too large."""
    budget = _current()
    others = (*args, *kwargs.values())
    sizes = [_size(arg) for arg in others]
    size = _size(value)
    budget.spend(1 + (size + sum(sizes)) // READ)
    if name == "replace" and isinstance(value, str) and len(others) >= 2:
        budget.allow(size + value.count(str(others[0])) * sizes[1])
    elif name == "join":
        # `SEPARATOR.join(TEXTS)` is a method, `TEXTS | join(SEPARATOR)` a filter.
        sequences = [arg for arg in (value, *args) if isinstance(arg, (list, tuple, range, dict, set))]
        longest = max((len(sequence) for sequence in sequences), default=0)
        separator = max((len(arg) for arg in (value, *others) if isinstance(arg, str)), default=0)
        budget.allow(size + sum(sizes) + longest * separator)
    elif name == "sum" and any(isinstance(arg, (list, tuple)) for arg in others):
        raise SecurityError("sum of lists is not supported, only of numbers")
    elif name in ("format", "format_map") and isinstance(value, str):
        _check_format(value)
    elif name in _GROWING:
        largest = max((abs(arg) if isinstance(arg, (int, float)) else n for arg, n in zip(others, sizes)), default=1)
        budget.allow((size + 1) * (largest + 1))


def _product(left: Any, right: Any) -> int:
    """Maximum size of a product."""
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return _size(left) + _size(right)
    return max((_size(x) * times for x, times in ((left, right), (right, left)) if isinstance(times, int)), default=0)


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise SecurityError(f"makes a whole number of more than {MAX_BITS:,} bits")


def _check_format(text: str) -> None:
    if _WIDE.search(text):
        raise SecurityError("a format with a field width from an argument, or of more than four digits")


def _current() -> _Budget:
    """The budget of the rendering; there is none while Jinja compiles, which so leaves all work to the rendering."""
    budget = _budget.get()
    if budget is None:
        raise SecurityError("is rendered outside of `bounded`")
    return budget


def _size(value: Any, known: dict[int, int] | None = None) -> int:
    """Estimates the characters that a value has or prints. Each list or mapping is read once."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, int):
        _check_bits(value.bit_length())
        return 1 + value.bit_length() // 3
    if isinstance(value, range):
        return len(value) * ELEMENT
    if isinstance(value, Namespace):
        value = value._Namespace__attrs  # type: ignore[attr-defined]
    if not isinstance(value, (list, tuple, dict, set, frozenset)) or isinstance(value, Undefined):
        return ELEMENT
    known = {} if known is None else known
    if id(value) not in known:
        known[id(value)] = ELEMENT  # a namespace can hold itself
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        known[id(value)] = ELEMENT * (1 + len(value)) + sum(_size(part, known) for part in parts)
    return known[id(value)]
