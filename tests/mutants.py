"""Makes wrong answers out of a right one: one small change of its source each.

A check that lets such a mutant pass does not see what the change breaks. The changes
are those of a hand that slips: a line forgotten, two lines or arguments swapped, an
operator mixed up, one too many or too few, a condition turned round.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """One changed source and what was changed: `drop line 7: say()`."""

    change: str
    source: str

    def function(self, name: str, names: dict[str, Any]) -> Callable[..., Any]:
        """The function `name` of the changed source, with `names` as its globals."""
        variables = {"__name__": "__main__", **names}
        exec(compile(self.source, f"<mutant: {self.change}>", "exec"), variables)
        return variables[name]


def mutants(source: str, mixed_up: Mapping[str, str]) -> Iterator[Mutant]:
    """Every mutant of a source, each with one change.

    `mixed_up` says which names a hand may take for which others.
    """
    tree = ast.parse(source)
    for number, node in enumerate(ast.walk(tree)):
        for change, alter in (*_alterations(node), *_mix_ups(node, mixed_up)):
            changed = copy.deepcopy(tree)
            alter(list(ast.walk(changed))[number])
            line = getattr(node, "lineno", getattr(node, "_line", 0))
            text = f"{change} (line {line}: {_text(node)})"
            yield Mutant(text, ast.unparse(ast.fix_missing_locations(changed)))


Alter = Callable[[Any], None]


def _text(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0][:60]


def _alterations(node: ast.AST) -> Iterator[tuple[str, Alter]]:
    yield from _drops(node)
    if isinstance(node, ast.BinOp):
        yield from _operators(node)
    elif isinstance(node, ast.Compare):
        yield from _comparisons(node)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield "one more", lambda n: setattr(n, "value", n.value + 1)
        yield "one less", lambda n: setattr(n, "value", n.value - 1)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, ast.If):
        yield "turn the condition round", _negate
        yield "always", lambda n: setattr(n, "test", ast.Constant(True))
    elif isinstance(node, ast.AugAssign):
        yield "assign instead", _assign
    elif isinstance(node, ast.Return) and node.value is not None:
        yield "return nothing", lambda n: setattr(n, "value", None)


def _mix_ups(node: ast.AST, mixed_up: Mapping[str, str]) -> Iterator[tuple[str, Alter]]:
    if isinstance(node, ast.Name) and node.id in mixed_up:
        other = mixed_up[node.id]
        yield f"{other} instead", lambda n: setattr(n, "id", other)


def _drops(node: ast.AST) -> Iterator[tuple[str, Alter]]:
    for field in ("body", "orelse"):
        body = getattr(node, field, None)
        if not isinstance(body, list):
            continue
        for index, statement in enumerate(body):
            if _is_dropped(node, statement):
                yield f"drop `{_text(statement)}`", _dropper(field, index)
            if index and all(_is_dropped(node, s) for s in body[index - 1 : index]):
                yield f"swap lines before `{_text(statement)}`", _swapper(field, index)


def _is_dropped(parent: ast.AST, statement: ast.stmt) -> bool:
    is_docstring = isinstance(statement, ast.Expr) and isinstance(
        statement.value, ast.Constant
    )
    return not isinstance(parent, ast.Module) and not is_docstring


def _dropper(field: str, index: int) -> Alter:
    def drop(node: Any) -> None:
        getattr(node, field)[index] = ast.Pass()

    return drop


def _swapper(field: str, index: int) -> Alter:
    def swap(node: Any) -> None:
        body = getattr(node, field)
        body[index - 1], body[index] = body[index], body[index - 1]

    return swap


_OTHER_OPERATOR: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Mod: ast.Add,
}


def _operators(node: ast.BinOp) -> Iterator[tuple[str, Alter]]:
    other = _OTHER_OPERATOR.get(type(node.op))
    if other is not None:
        yield f"{other.__name__} instead", lambda n: setattr(n, "op", other())
    yield "left side only", _keep_left


def _keep_left(node: Any) -> None:
    # Plus 0 keeps the node's type, so that it can be changed in place.
    node.op, node.right = ast.Add(), ast.Constant(0)


_OTHER_COMPARISON: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.LtE: (ast.Lt,),
    ast.GtE: (ast.Gt,),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}


def _comparisons(node: ast.Compare) -> Iterator[tuple[str, Alter]]:
    for other in _OTHER_COMPARISON.get(type(node.ops[0]), ()):
        yield f"{other.__name__} instead", _compare_with(other)


def _compare_with(other: type) -> Alter:
    def change(node: Any) -> None:
        node.ops[0] = other()

    return change


_OTHER_NAME = {"min": "max", "max": "min", "sum": "max", "sorted": "list"}


def _calls(node: ast.Call) -> Iterator[tuple[str, Alter]]:
    name = getattr(node.func, "id", "")
    if name in _OTHER_NAME:
        yield f"{_OTHER_NAME[name]} instead", _rename(_OTHER_NAME[name])
    if len(node.args) == 2:
        yield "swap the arguments", lambda n: n.args.reverse()
    if node.keywords and any(word.arg == "key" for word in node.keywords):
        yield "without the key", lambda n: n.keywords.clear()


def _rename(name: str) -> Alter:
    def rename(node: Any) -> None:
        node.func = ast.Name(name, ast.Load())

    return rename


def _assign(node: Any) -> None:
    # x -= x - y leaves y: a plain assignment that stays an AugAssign node.
    node.op, node.value = (
        ast.Sub(),
        ast.BinOp(copy.deepcopy(node.target), ast.Sub(), node.value),
    )
    node.value.left.ctx = ast.Load()


def _negate(node: Any) -> None:
    node.test = ast.UnaryOp(ast.Not(), node.test)
