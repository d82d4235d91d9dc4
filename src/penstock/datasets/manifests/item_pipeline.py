"""Plans and computes the items that the requested keys need.

A node is one call of an item, or one yield of a generator. The plan for some keys is the list of
nodes that they need. Nothing is kept between two samples, so a failed sample has no side effects.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Self

from penstock.datasets.manifests.items import (
    DynamicItem,
    GeneratorDynamicItem,
    Keys,
    as_item,
    as_keys,
)
from penstock.errors import CircularDependencyError, PipelineError, UnknownKeyError

OutputKeys = str | Iterable[str] | Mapping[str, str] | None
"""Keys to return, or a dict from output name to key."""


class Node(NamedTuple):
    """One call of an item: the item, the number of the call, and the keys that it provides."""

    item: DynamicItem
    number: int
    keys: list[str]


class ItemPlan(NamedTuple):
    """The keys needed from the data, the calls in order, and the outputs as (name, key)."""

    static: list[str]
    nodes: list[Node]
    outputs: list[tuple[str, str]]


class ItemPipeline:
    """Computes items from data, each only if a requested key needs it.

    ``static_data_keys`` are the keys of the data, ``dynamic_items`` are items or dicts with
    ``func``, ``takes`` and ``provides``, in any order; ``output_keys`` is a list of keys, or a
    dict from output name to key. If two items provide a key, the later one is used; the data takes
    precedence over items (with a warning).

    A key that nothing provides raises an :class:`~penstock.errors.UnknownKeyError` when it is
    computed, a dependency cycle a :class:`~penstock.errors.CircularDependencyError`. An exception
    of a function is raised with a note that names item and sample.

    >>> pipeline = ItemPipeline(
    ...     ["text"],
    ...     [{"func": str.split, "takes": "text", "provides": "words"},
    ...      {"func": len, "takes": "words", "provides": "count"}],
    ...     output_keys={"n": "count"})
    >>> pipeline({"text": "one two three"})
    {'n': 3}
    >>> pipeline.compute_specific(["words"], {"text": "a b"})
    {'words': ['a', 'b']}
    """

    def __init__(
        self,
        static_data_keys: Iterable[str],
        dynamic_items: Iterable[Any] | None = None,
        output_keys: OutputKeys = None,
    ) -> None:
        self.static_keys = dict.fromkeys(static_data_keys)  # a set that keeps its order
        self.dynamic_items: list[DynamicItem] = []
        self.output_mapping: dict[str, str] = {}
        self._nodes: dict[str, Node] = {}
        self._plan: ItemPlan | None = None
        self.add_dynamic_items(dynamic_items or ())
        self.set_output_keys(output_keys)

    def add_static_keys(self, static_keys: Iterable[str]) -> None:
        """Add keys that the data has."""
        self.static_keys.update(dict.fromkeys(static_keys))
        self._plan = None

    def add_dynamic_items(self, dynamic_items: Iterable[Any]) -> None:
        """Add several items, or dicts with ``func``, ``takes`` and ``provides``."""
        for item in dynamic_items:
            if isinstance(item, Mapping):
                self.add_dynamic_item(**item)
            else:
                self.add_dynamic_item(item)

    def add_dynamic_item(
        self,
        func: DynamicItem | Callable[..., Any],
        takes: str | Keys | None = None,
        provides: str | Keys | None = None,
    ) -> None:
        """Add an item, or a function with the keys that it takes and provides."""
        if isinstance(func, DynamicItem):
            if takes is not None or provides is not None:
                raise PipelineError(f"{func!r} has its own takes and provides: leave them out")
            item = func
        else:
            item = as_item(func, takes or (), provides or ())
        if not item.provides:
            raise PipelineError(f"{item!r} provides no key: name one with provides")
        for number, keys in enumerate(item.calls()):
            node = Node(item, number, keys)
            for key in keys:
                if key in self.static_keys:
                    warnings.warn(
                        f"{item!r}: {key!r} is in the data, which takes precedence; provide "
                        "another key",
                        stacklevel=3,
                    )
                self._nodes[key] = node
        self.dynamic_items.append(item)
        self._plan = None

    def set_output_keys(self, keys: OutputKeys) -> None:
        """Set the keys that :meth:`compute_outputs` returns."""
        self.output_mapping = _as_mapping(keys)
        self._plan = None

    @property
    def plan(self) -> ItemPlan:
        """The plan for the output keys; raises if one cannot be computed."""
        if self._plan is None:
            self._plan = self.plan_for(self.output_mapping)
        return self._plan

    def plan_for(self, keys: OutputKeys) -> ItemPlan:
        """Return the plan for these keys."""
        mapping = _as_mapping(keys)
        static: dict[str, None] = {}
        done: dict[tuple[int, int], Node] = {}
        for key in mapping.values():
            self._visit(key, "the output keys", static, done, [])
        return ItemPlan(list(static), list(done.values()), list(mapping.items()))

    def _visit(
        self,
        key: str,
        asker: str,
        static: dict[str, None],
        done: dict[tuple[int, int], Node],
        trail: list[tuple[int, int]],
    ) -> None:
        if key in self.static_keys:
            static[key] = None
            return
        node = self._nodes.get(key)
        if node is None:
            known = ", ".join([*self.static_keys, *self._nodes]) or "none"
            raise UnknownKeyError(
                f"no data and no item provides {key!r}, which {asker} need (keys: {known})"
            )
        for number in range(node.number + 1):  # a generator runs up to the yield it is needed for
            mark = (id(node.item), number)
            if mark in done:
                continue
            if mark in trail:
                names = {id(item): item.name for item in self.dynamic_items}
                cycle = " → ".join(names[item_id] for item_id, _ in [*trail, mark])
                raise CircularDependencyError(f"items depend on each other in a cycle: {cycle}")
            if number == 0:
                for argument in node.item.takes:
                    self._visit(argument, repr(node.item), static, done, [*trail, mark])
            done[mark] = Node(node.item, number, node.item.calls()[number])

    def compute_outputs(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Compute the output keys from the data of one sample, which is not modified."""
        return compute(self._plan or self.plan, data)

    __call__ = compute_outputs

    def compute_specific(self, keys: OutputKeys, data: Mapping[str, Any]) -> dict[str, Any]:
        """Compute these keys instead of the output keys."""
        return compute(self.plan_for(keys), data)

    def copy(self) -> Self:
        """Return a copy whose items and output keys can be changed separately."""
        other = object.__new__(type(self))
        other.__dict__.update(
            self.__dict__,
            static_keys=dict(self.static_keys),
            dynamic_items=list(self.dynamic_items),
            output_mapping=dict(self.output_mapping),
            _nodes=dict(self._nodes),
            _plan=None,
        )
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": None}

    def __repr__(self) -> str:
        return (
            f"ItemPipeline(data {list(self.static_keys)}, items {list(self._nodes)}, "
            f"outputs {self.output_mapping})"
        )


def _as_mapping(keys: OutputKeys) -> dict[str, str]:
    if isinstance(keys, Mapping):
        return dict(keys)
    return {key: key for key in as_keys(keys or ())}


def compute(plan: ItemPlan, data: Mapping[str, Any]) -> dict[str, Any]:
    """Run a plan on the data of one sample."""
    known: dict[str, Any] = {}
    for key in plan.static:
        try:
            known[key] = data[key]
        except KeyError:
            raise make_missing_key_error(key, data.get("id")) from None
    return run_plan(plan, known, lambda: data.get("id"))


def make_missing_key_error(key: str, uid: Any) -> UnknownKeyError:
    """Return the error for a sample that lacks a key."""
    about = f" (sample {uid!r})" if uid is not None else ""
    return UnknownKeyError(f"the data of this sample has no {key!r}{about}")


def run_plan(plan: ItemPlan, known: dict[str, Any], uid: Callable[[], Any]) -> dict[str, Any]:
    """Run a plan on its data; ``uid`` returns the sample's id, for errors."""
    if not plan.nodes:
        return {name: known[key] for name, key in plan.outputs}
    running: dict[int, Any] = {}
    try:
        for node in plan.nodes:
            try:
                _call(node, known, running)
            except Exception as error:
                error.add_note(f"in the item {node.item.name!r} of sample {uid()!r}")
                raise
    finally:
        for generator in running.values():
            generator.close()
    return {name: known[key] for name, key in plan.outputs}


def _call(node: Node, known: dict[str, Any], running: dict[int, Any]) -> None:
    item, number, keys = node
    if not isinstance(item, GeneratorDynamicItem):
        value = item(*[known[key] for key in item.takes])
    else:
        if number == 0:
            running[id(item)] = item.func(*[known[key] for key in item.takes])
        try:
            value = next(running[id(item)])
        except StopIteration:
            raise PipelineError(
                f"{item!r} yields {number} times: it provides {len(item.provides)} keys"
            ) from None
    if len(keys) == 1:
        known[keys[0]] = value
        return
    try:
        values = tuple(value)
    except TypeError:
        values = (value,)
    if len(values) != len(keys):
        raise PipelineError(f"{item!r} returned {len(values)} values for the keys {keys}")
    known.update(zip(keys, values))
