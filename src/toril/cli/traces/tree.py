"""The spans of a trace as a tree, whatever their parents are said to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from toril.pipelines.spans.span import Span

DEEPEST = 12
"""Of the lines that lead to a span, those of so many levels are drawn."""


@dataclass(slots=True, eq=False)
class Node:
    """A span with those below it, or a parent that is not there."""

    span: Span | None
    missing: str | None = None
    """The id of the parent that is not there."""
    circular: bool = False
    """Its parent is below it, in data that goes round: it stands at the top."""
    children: list[Node] = field(default_factory=list)

    @property
    def order(self) -> tuple[int, str]:
        """Where it stands among its neighbours."""
        if self.span is not None:
            return self.span.start, self.span.span_id
        return min(child.order for child in self.children)


@dataclass(frozen=True, slots=True)
class Line:
    """A node where it stands in the picture."""

    node: Node
    depth: int
    guide: str
    """The lines of the tree before it."""


def tree(spans: Sequence[Span]) -> list[Node]:
    """What stands at the top, with all that is below; each span is in it once."""
    nodes: dict[str, Node] = {}
    for span in spans:
        nodes.setdefault(span.span_id, Node(span))
    tops: list[Node] = []
    missing: dict[str, Node] = {}
    for node in nodes.values():
        parent = _parent(node)
        if parent is None:
            tops.append(node)
        elif parent in nodes:
            nodes[parent].children.append(node)
        else:
            missing.setdefault(parent, Node(None, missing=parent)).children.append(node)
    tops += missing.values()
    tops += _cut_circles(nodes, tops)
    for node in (*nodes.values(), *missing.values()):
        node.children.sort(key=lambda child: child.order)
    return sorted(tops, key=lambda top: top.order)


def _parent(node: Node) -> str | None:
    return None if node.span is None else node.span.parent_span_id


def _cut_circles(nodes: dict[str, Node], tops: list[Node]) -> list[Node]:
    """The first span of each circle, taken from under its parent: nothing leads there from the top."""
    reached: set[str] = set()
    _reach(tops, reached)
    cut = []
    for node in sorted(nodes.values(), key=lambda one: one.order):
        assert node.span is not None
        if node.span.span_id in reached:
            continue
        circle = _circle_above(node, nodes)
        first = min(circle, key=lambda one: one.order)
        first.circular = True
        nodes[_parent(first) or ""].children.remove(first)
        _reach([first], reached)
        cut.append(first)
    return cut


def _circle_above(node: Node, nodes: dict[str, Node]) -> list[Node]:
    """Up from a span until it goes round: the spans that it would come by again."""
    met: dict[Node, int] = {}
    while node not in met:
        met[node] = len(met)
        node = nodes[_parent(node) or ""]
    return [one for one, place in met.items() if place >= met[node]]


def _reach(tops: Sequence[Node], reached: set[str]) -> None:
    waiting = list(tops)
    while waiting:
        node = waiting.pop()
        if node.span is not None:
            reached.add(node.span.span_id)
        waiting += node.children


def lines(tops: Sequence[Node]) -> Iterator[Line]:
    """From top to bottom, one for each node. Not by recursion: a trace can be as deep as it likes."""
    waiting = [(top, 0, "", True) for top in reversed(tops)]
    while waiting:
        node, depth, before, is_last = waiting.pop()
        if depth == 0:
            yield Line(node, depth, "")
            below = ""
        else:
            yield Line(node, depth, before + ("└╴" if is_last else "├╴"))
            below = (before + ("  " if is_last else "│ "))[-2 * DEEPEST :]
        last = len(node.children) - 1
        waiting += [(node.children[place], depth + 1, below, place == last) for place in range(last, -1, -1)]
