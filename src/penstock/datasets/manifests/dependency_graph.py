"""A dependency graph, and an order in which to compute its nodes.

SpeechBrain's ``DependencyGraph``, for programs that use it directly.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NamedTuple

from penstock.errors import CircularDependencyError, PipelineError, UnknownKeyError


class DGNode(NamedTuple):
    """A node: its key, the indices of the nodes it depends on, and any data."""

    key: Hashable
    edges: list[int]
    data: Any


class DependencyGraph:
    """Nodes and their dependencies; an edge from A to B means that B is computed before A.

    >>> graph = DependencyGraph()
    >>> graph.add_edge("words", "text")
    >>> graph.add_edge("count", "words")
    >>> [node.key for node in graph.get_evaluation_order(["count"])]
    ['text', 'words', 'count']
    """

    def __init__(self) -> None:
        self.digraph: list[DGNode] = []
        self.key2ind: dict[Hashable, int] = {}
        self._explicit: set[Hashable] = set()

    @staticmethod
    def get_unique_key() -> Hashable:
        """Return a key that no other node has."""
        return uuid.uuid4()

    def add_node(self, key: Hashable | None = None, data: Any = None) -> Hashable:
        """Add a node, or data to a node that an edge has added; return its key.

        Adding a key twice raises a :class:`~penstock.errors.PipelineError`.
        """
        key = self.get_unique_key() if key is None else key
        if key in self._explicit:
            raise PipelineError(f"a node can be added only once: the graph has {key!r} already")
        self._explicit.add(key)
        index = self._find_or_add(key)
        self.digraph[index] = self.digraph[index]._replace(data=data)
        return key

    def add_edge(self, from_key: Hashable, to_key: Hashable) -> None:
        """Make ``from_key`` depend on ``to_key``; unknown keys become nodes."""
        start, end = self._find_or_add(from_key), self._find_or_add(to_key)
        if end not in self.digraph[start].edges:
            self.digraph[start].edges.append(end)

    def _find_or_add(self, key: Hashable) -> int:
        if key not in self.key2ind:
            self.key2ind[key] = len(self.digraph)
            self.digraph.append(DGNode(key, [], None))
        return self.key2ind[key]

    def is_valid(self) -> bool:
        """Return whether the graph has no cycles."""
        try:
            for _ in self.get_evaluation_order():
                pass
        except CircularDependencyError:
            return False
        return True

    def get_evaluation_order(
        self, selected_keys: Iterable[Hashable] | None = None
    ) -> Iterator[DGNode]:
        """Yield the nodes that the selected keys need, each after those it depends on.

        A cycle raises a :class:`~penstock.errors.CircularDependencyError` when it is reached.
        """
        done: set[int] = set()
        for key in list(self.key2ind) if selected_keys is None else selected_keys:
            if key not in self.key2ind:
                raise UnknownKeyError(f"the graph has no node {key!r}")
            trail: dict[int, Iterator[int]] = {}  # the path to the current node
            self._enter(self.key2ind[key], trail, done)
            while trail:
                index, edges = next(reversed(trail.items()))
                if not any(self._enter(end, trail, done) for end in edges):
                    del trail[index]
                    done.add(index)
                    yield self.digraph[index]

    def _enter(self, index: int, trail: dict[int, Iterator[int]], done: set[int]) -> bool:
        """Extend the path by a node; False if that node is done."""
        if index in trail:
            cycle = " → ".join(str(self.digraph[n].key) for n in [*trail, index])
            raise CircularDependencyError(f"nodes depend on each other in a cycle: {cycle}")
        if index not in done:
            trail[index] = iter(self.digraph[index].edges)
        return index not in done

    def __contains__(self, key: Hashable) -> bool:
        return key in self.key2ind
