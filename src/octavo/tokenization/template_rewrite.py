"""Rewrites a parsed template so that whatever the sandbox cannot intercept goes through a metered function."""

from __future__ import annotations

from typing import Any, Final

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

_REFUSED: Final = (
    nodes.Include,
    nodes.Import,
    nodes.FromImport,
    nodes.Extends,
    nodes.ScopedEvalContextModifier,
)
_CONTAINER_BYTES: Final = 100


class GenerationBlocks(Extension):
    """{% generation %} ... {% endgeneration %}: marks what a model writes, for training; here only its content counts."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it as a plain set)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def rewrite(template: nodes.Template) -> nodes.Template:
    """Return `template` with loops, macros, ~, slices, tuples and comparisons metered. Raises SecurityError."""
    for refused in template.find_all(_REFUSED):
        raise SecurityError(f"{type(refused).__name__.lower()} is not allowed in a chat template")
    rewritten = _Rewriter().visit(template)
    rewritten.set_environment(template.environment)
    assert isinstance(rewritten, nodes.Template)
    return rewritten


def _call(name: str, args: list[nodes.Expr], line: int) -> nodes.Call:
    function = nodes.EnvironmentAttribute(name, lineno=line)
    return nodes.Call(function, args, [], None, None, lineno=line)


def _literal_bytes(body: list[nodes.Node]) -> int:
    """Bytes that one pass through `body` makes without a call: literal text, lists and dicts; inner loops apart."""
    total = 0
    stack = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, nodes.TemplateData):
            total += len(node.data)
        elif isinstance(node, (nodes.List, nodes.Dict)):
            total += _CONTAINER_BYTES
        if not isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)):
            stack.extend(node.iter_child_nodes())
    return total


def _is_constant(node: nodes.Node) -> bool:
    if isinstance(node, (nodes.List, nodes.Tuple)):
        return all(isinstance(item, nodes.Const) for item in node.items)
    return isinstance(node, nodes.Const)


class _Rewriter(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.For:
        cost = _literal_bytes(node.body)
        self.generic_visit(node)
        step = _call("metered_step", [nodes.Const(cost)], node.lineno)
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        if node.test is not None:
            passes = _call("metered_step", [nodes.Const(0)], node.lineno)
            node.test = nodes.And(passes, node.test, lineno=node.lineno)
        return node

    def _visit_callable(self, node: Any) -> Any:
        cost = _literal_bytes(node.body)
        self.generic_visit(node)
        step = _call("metered_step", [nodes.Const(cost)], node.lineno)
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        return node

    visit_Macro = visit_CallBlock = visit_Block = _visit_callable

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _call("metered_concat", node.nodes, node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        args = [bound if bound is not None else nodes.Const(None) for bound in bounds]
        return _call("metered_slice", [node.node, *args], node.lineno)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        self.generic_visit(node)
        if node.ctx != "load" or _is_constant(node):
            return node
        return _call("metered_tuple", node.items, node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        operands = [node.expr, *(operand.expr for operand in node.ops)]
        is_cheap = len(operands) == 2 and any(map(_is_constant, operands))
        self.generic_visit(node)
        if not is_cheap:
            node.expr = _call("metered_operand", [node.expr], node.lineno)
            for operand in node.ops:
                operand.expr = _call("metered_operand", [operand.expr], node.lineno)
        return node
