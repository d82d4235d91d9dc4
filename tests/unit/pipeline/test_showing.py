"""What pipelines, loaders, indexes and statistics print, in a terminal and in a notebook."""

from __future__ import annotations

import pickle

import pytest

import penstock as wds
from penstock.loaders.stats.stats import StageStats, Stats
from penstock.notebook import html_table


def test_class_with_a_length_keeps_its_name():
    dataset = wds.WebDataset("x.tar").with_length(3)
    assert type(dataset).__name__ == type(dataset).__qualname__ == "WebDataset"
    with pytest.raises(AttributeError, match="'WebDataset' object has no attribute 'foo'"):
        dataset.foo
    assert len(pickle.loads(pickle.dumps(dataset))) == 3


def test_state_with_the_older_name_of_a_nested_data_set_still_loads():
    def make():
        return wds.DataPipeline(wds.DataPipeline([1, 2, 3]).with_length(3))

    first = make()
    stream = iter(first)
    assert next(stream) == 1
    state = first.state_dict()
    del state["check"]
    assert state["stages"] == ["DataPipeline", "DataPipeline[0]: [1, 2, 3]"]
    older = [name.replace("DataPipeline", "DataPipeline_Length") for name in state["stages"]]
    second = make()
    second.load_state_dict({**state, "stages": older})
    assert list(second) == [2, 3]


@pytest.mark.parametrize(
    ("engine", "kind"), [("processes", "DataLoader"), ("threads", "ThreadLoader")]
)
def test_loader_says_what_it_runs_on(engine, kind):
    pytest.importorskip("torch")
    data = wds.DataPipeline(lambda: iter([1, 2, 3]))
    loader = wds.WebLoader(data, batch_size=None, num_workers=2, engine=engine)
    assert repr(loader).startswith(f"WebLoader({kind}(batch_size=None, num_workers=2, dataset=Da")


def test_statistics_print_as_a_table():
    stats = Stats(engine="threads", workers=2, stages=(StageStats("map", 1000, 2.5, 2.0, 0.5),))
    assert repr(stats) == str(stats)
    assert repr(stats).splitlines()[1].split() == ["map", "1,000", "2.50", "2.00", "50%"]
    assert "trainer_wait_s" not in repr(stats)


def test_notebook_shows_the_stages_of_a_pipeline_escaped():
    def odd(source):
        return source

    odd.__qualname__ = "<script>"
    inner = wds.DataPipeline(["<b>"], wds.map(len))
    shown = wds.DataPipeline(inner, odd)._repr_html_()
    assert "<script>" not in shown
    assert "<td>1</td><td>&lt;script&gt;</td>" in shown
    assert "<td>0.0</td><td>[&#x27;&lt;b&gt;&#x27;]</td>" in shown
    assert "<td>0.1</td><td>map(len)</td>" in shown


def test_notebook_shows_a_loader_with_its_data_set():
    loader = wds.WebLoader(wds.DataPipeline([1, 2]), batch_size=None, engine="threads")
    shown = loader._repr_html_()
    assert "<caption>WebLoader</caption>" in shown
    assert shown.index("[1, 2]") < shown.index("ThreadLoader(")


def test_notebook_shows_statistics():
    stats = Stats(engine="threads", workers=2, stages=(StageStats("<map>", 1000, 2.5, 2.0, 0.5),))
    shown = stats._repr_html_()
    assert "<td>&lt;map&gt;</td><td>1,000</td>" in shown
    assert "too short to say" in shown


def test_notebook_shows_an_index(shards):
    pytest.importorskip("pyarrow")
    shown = wds.open_index(shards(30, 2), True)._repr_html_()
    assert "60 samples in 30 shards" in shown
    assert "<td>d000.tar</td><td>2</td>" in shown
    assert "… and 10 more" in shown
    assert len(shown) < 3000


def test_table_for_a_notebook_is_small():
    table = html_table("c", ["a"], [["x" * 100_000]] * 1000)
    assert len(table) < 10_000
