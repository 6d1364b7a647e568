"""A jinja2 sandbox for chat templates, which come with models that strangers made and are fed text that clients sent.

jinja2's immutable sandbox keeps a template away from Python's internals and from changing its inputs. This adds what it
leaves open: time and memory. A render has a budget of steps. Loop rounds, macro calls and the sizes of values that
operators, filters and calls make are charged to it; no single value grows beyond a bound; and the caller may give up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from phloem_tokenizer.growth import (
    MAX_TEXT,
    TOO_LARGE,
    check_format,
    check_joined,
    check_repetition,
    check_replacement,
    check_widths,
    checked_format,
    checked_indent,
    checked_join,
    checked_replace,
    tojson,
)

MAX_STEPS = 500_000  # about a second; a chat of 10,000 messages takes a few 10,000
CHARACTERS_PER_STEP = 256  # what copying that much text costs, compared with a round of a loop
MAX_BITS = 256  # of any integer; templates count messages
CHECK_EVERY = 256  # steps between two questions whether to give up

BUDGET = "phloem budget"  # not an identifier, so no template can name it

_PADDING = ("center", "ljust", "rjust", "zfill")


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
        self.globals["dict"] = lambda *args, **kwargs: dict(*args, **kwargs)
        self.globals["namespace"] = SafeNamespace
        self.filters["tojson"] = tojson
        self.filters["indent"] = checked_indent
        self.filters["replace"] = checked_replace
        self.filters["join"] = checked_join

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
                raise SecurityError(TOO_LARGE)
            budget.charge(len(value) // CHARACTERS_PER_STEP)
        elif isinstance(value, (list, tuple, dict)):
            _charge_all(budget, value)
        return value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (isinstance(right, (int, float)) and abs(right) <= MAX_BITS):
            raise SecurityError("the chat template raises to a power that is too large")
        if operator == "%" and isinstance(left, str):
            check_format(left, right)
        if operator == "*":
            check_repetition(left, right)
            check_repetition(right, left)
        return self.tick(context, super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        return None if wrapped is None else checked_format(str(value.__self__), wrapped)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        method, owner = getattr(obj, "__name__", ""), getattr(obj, "__self__", None)
        if isinstance(owner, str):
            if method in _PADDING:
                check_widths(args, kwargs)
            elif method == "replace":
                check_replacement(owner, *args[:2])
            elif method == "join" and len(args) == 1:
                args = (check_joined(owner, args[0]),)
            elif method in ("translate", "expandtabs"):
                raise SecurityError(f"the chat template uses {method}, which is not supported")
        value = super().call(context, obj, *args, **kwargs)
        return value if obj == self.tick else self.tick(context, value)


class SafeNamespace(Namespace):
    """A namespace whose attributes can't stand in for what Python itself looks up on an object."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"the chat template sets {name!r} on a namespace")
        super().__setitem__(name, value)


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
