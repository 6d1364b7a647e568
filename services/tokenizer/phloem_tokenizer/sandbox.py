"""A jinja2 sandbox for chat templates, which come with models that strangers made and are fed text that clients sent.

jinja2's immutable sandbox keeps a template away from Python's internals and from changing its inputs. This adds what it
leaves open: time and memory. A render has a budget of steps. Loop rounds, macro calls and the sizes of values that
operators, filters and calls make are charged to it; no single value grows beyond a bound; and the caller may give up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Environment, nodes, pass_environment
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_TEXT = 8 << 20  # characters of any value and of the result: some two million tokens, beyond every context
MAX_STEPS = 500_000  # about a second; a chat of 10,000 messages takes a few 10,000
CHARACTERS_PER_STEP = 256  # what copying that much text costs, compared with a round of a loop
MAX_BITS = 256  # of any integer; templates count messages
MAX_WIDTH_DIGITS = 4  # of a number in a format string, so that padding stays small
CHECK_EVERY = 256  # steps between two questions whether to give up

BUDGET = "phloem budget"  # not an identifier, so no template can name it

_TOO_LARGE = "the chat template makes a value that is too large"
_WIDE = re.compile(rf"\d{{{MAX_WIDTH_DIGITS + 1},}}|\*|\{{[^{{}}]*\{{")  # wide, or a width taken from an argument
_PADDING = ("center", "ljust", "rjust", "zfill", "expandtabs")


class GaveUp(Exception):
    """Raised out of a render when its caller no longer wants the result."""


class Budget:
    """What one render may still use."""

    def __init__(self, give_up: Callable[[], bool]) -> None:
        self._left = MAX_STEPS
        self._give_up = give_up
        self._check_in = CHECK_EVERY

    def charge(self, steps: int) -> None:
        """Raises SecurityError when the budget is used up, GaveUp when the caller has given up."""
        self._left -= steps
        self._check_in -= steps
        if self._left < 0:
            raise SecurityError("the chat template runs for too long")
        if self._check_in < 0:
            self._check_in = CHECK_EVERY
            if self._give_up():
                raise GaveUp


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment. Every context made from it must hold a `Budget` under BUDGET."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        # The white-space rules and extensions that templates of published models are written for.
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationBlock])
        for name in ("batch", "center", "format", "pprint", "random", "slice", "urlize", "wordwrap"):
            del self.filters[name]  # they pad, or are not functions of the chat
        del self.globals["lipsum"]
        self.filters["tojson"] = _tojson
        self.filters["indent"] = _checked_filter(self.filters["indent"])
        self.filters["replace"] = _checked_replace
        self.filters["join"] = _checked_join

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Meter().visit(super()._parse(source, name, filename))
        return tree

    def tick(self, context: Context, value: Any = None) -> Any:
        """Charge one step and the size of `value`, which is returned. Templates are compiled to call this."""
        if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > MAX_BITS:
            raise SecurityError("the chat template makes a number that is too large")
        budget: Budget = context.parent[BUDGET]
        budget.charge(1)
        if isinstance(value, (str, bytes)):
            if len(value) > MAX_TEXT:
                raise SecurityError(_TOO_LARGE)
            budget.charge(len(value) // CHARACTERS_PER_STEP)
        elif isinstance(value, (list, tuple, dict)):
            _charge_all(budget, value)
        return value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (isinstance(right, (int, float)) and abs(right) <= MAX_BITS):
            raise SecurityError("the chat template raises to a power that is too large")
        if operator == "%" and isinstance(left, str):
            _check_format(left)
        if operator == "*":
            _check_repetition(left, right)
            _check_repetition(right, left)
        return self.tick(context, super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if getattr(value, "__name__", "") in ("format", "format_map") and isinstance(value.__self__, str):
            _check_format(value.__self__)
        return super().wrap_str_format(value)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        method, owner = getattr(obj, "__name__", ""), getattr(obj, "__self__", None)
        if isinstance(owner, str):
            if method in _PADDING:
                _check_widths(args, kwargs)
            elif method == "replace":
                _check_replacement(owner, *args[:2])
            elif method == "join" and len(args) == 1:
                args = (_check_joined(owner, args[0]),)
            elif method == "translate":
                raise SecurityError("the chat template translates text, which is not supported")
        value = super().call(context, obj, *args, **kwargs)
        return value if obj == self.tick else self.tick(context, value)


class GenerationBlock(Extension):
    """`{% generation %}` marks the model's own words for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's way to declare it

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Meter(NodeTransformer):
    """Compile calls of `tick` into loops and macros, and around what can make a value grow."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self._with_step(node)
        if node.test is not None:  # rounds that the condition leaves out never reach the body
            node.test = nodes.And(self._tick(nodes.Const(True), node.lineno), node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._with_step(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._with_step(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        return self._metered(node)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        # The filter of a filter block has no input expression, and its output goes straight to the result.
        return self.generic_visit(node) if node.node is None else self._metered(node)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._metered(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._metered(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._metered(node) if node.ctx == "load" else node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> list[nodes.Node]:
        self.generic_visit(node)
        if not isinstance(node.target, nodes.Name):
            return [node]
        made = nodes.Name(node.target.name, "load", lineno=node.lineno)
        return [node, nodes.ExprStmt(self._tick(made, node.lineno), lineno=node.lineno)]

    def _with_step(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(self._tick(None, node.lineno), lineno=node.lineno))
        return node

    def _metered(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return self._tick(node, node.lineno)

    def _tick(self, value: nodes.Expr | None, line: int) -> nodes.Call:
        tick = nodes.EnvironmentAttribute("tick", lineno=line)
        arguments = [nodes.ContextReference(lineno=line), *([] if value is None else [value])]
        return nodes.Call(tick, arguments, [], None, None, lineno=line)


def _charge_all(budget: Budget, container: Any) -> None:
    """Charge what a nested value holds in all, every time it is held: that bounds its text, however it is shared."""
    left = [container]
    while left:
        value = left.pop()
        if isinstance(value, (str, bytes)):
            budget.charge(1 + len(value) // CHARACTERS_PER_STEP)
            continue
        budget.charge(1)
        if isinstance(value, dict):
            left.extend(value)
            left.extend(value.values())
        elif isinstance(value, (list, tuple)):
            left.extend(value)


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
    """JSON as published templates expect it: not escaped for HTML, other scripts as they are."""
    if indent is not None:
        _check_widths((indent,), {})
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _checked_filter(original: Callable[..., Any]) -> Callable[..., Any]:
    def checked(text: str, *args: Any, **kwargs: Any) -> Any:
        _check_widths(args, kwargs)
        return original(text, *args, **kwargs)

    return checked


def _checked_replace(text: Any, old: Any, new: Any, count: int = -1) -> str:
    _check_replacement(str(text), str(old), str(new))
    return str(text).replace(str(old), str(new), count)


@pass_environment
def _checked_join(environment: Environment, value: Any, d: Any = "", attribute: Any = None) -> str:
    parts = list(value)
    if attribute is not None:
        parts = list(map(make_attrgetter(environment, attribute), parts))
    return str(d).join(_check_joined(str(d), [str(part) for part in parts]))


def _check_joined(joint: str, parts: Any) -> list[Any]:
    """The parts as a list, since only a list can be counted and then joined."""
    listed = list(parts)
    if len(joint) * len(listed) + sum(len(part) for part in listed if isinstance(part, str)) > MAX_TEXT:
        raise SecurityError(_TOO_LARGE)
    return listed


def _check_replacement(text: str, old: Any = "", new: Any = "") -> None:
    if isinstance(old, str) and isinstance(new, str):
        times = text.count(old) if len(new) > len(old) else 0
        if len(text) + times * (len(new) - len(old)) > MAX_TEXT:
            raise SecurityError(_TOO_LARGE)


def _check_repetition(sequence: Any, times: Any) -> None:
    if isinstance(sequence, (str, bytes, list, tuple)) and isinstance(times, int) and len(sequence) * times > MAX_TEXT:
        raise SecurityError(_TOO_LARGE)


def _check_format(form: str) -> None:
    if _WIDE.search(form):
        raise SecurityError("the chat template formats with a width that is too large")


def _check_widths(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    for width in (*args, *kwargs.values()):
        if isinstance(width, int) and width >= 10**MAX_WIDTH_DIGITS:
            raise SecurityError("the chat template pads to a width that is too large")
