"""SpeechBrain's graph of dependencies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.datasets.manifests.dependency_graph import DependencyGraph
from penstock.errors import CircularDependencyError, PipelineError


def order(graph, keys=None):
    return [node.key for node in graph.get_evaluation_order(keys)]


@given(st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_a_node_comes_after_what_it_depends_on_or_the_circle_is_an_error(pairs):
    graph = DependencyGraph()
    for before, after in pairs:
        graph.add_edge(after, before)
    if not graph.is_valid():
        with pytest.raises(CircularDependencyError, match=r"cycle: .+ → "):
            order(graph)
        return
    places = {key: place for place, key in enumerate(order(graph))}
    assert all(places[before] < places[after] for before, after in pairs)
    assert len(places) == len({key for pair in pairs for key in pair})


def test_only_what_the_selected_keys_need_is_in_the_order():
    graph = DependencyGraph()
    graph.add_edge("b", "a")
    graph.add_edge("c", "b")
    graph.add_edge("d", "a")
    assert order(graph, ["b"]) == ["a", "b"]
    assert "d" in graph
    with pytest.raises(KeyError, match="no node 'x'"):
        order(graph, ["x"])


def test_a_long_chain_is_ordered():
    graph = DependencyGraph()
    for number in range(5000):
        graph.add_edge(number + 1, number)
    assert order(graph, [5000]) == list(range(5001))


def test_data_of_a_node_may_come_after_its_edges_but_a_node_only_once():
    graph = DependencyGraph()
    graph.add_edge("b", "a")
    assert graph.add_node("a", data=7) == "a"
    named = graph.add_node(data=8)
    assert [node.data for node in graph.get_evaluation_order()] == [7, None, 8]
    assert named in graph
    with pytest.raises(PipelineError, match="'a' already"):
        graph.add_node("a")
