"""What engine="threads" takes and gives, and how an engine is chosen."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch.utils.data import default_convert

import penstock as wds
from penstock.engine.observer import StatsListener
from penstock.loaders.to_tensors import arrays_to_tensors


def slow(n):
    time.sleep(1e-3)
    return n


def row(n):
    time.sleep(2e-4)
    return np.full((3, 4), n), n, f"n{n}"


def plain(value):
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def data():
    return wds.DataPipeline(list(range(20))).map(row)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("size", [None, 1, 6])
def test_batches_are_those_of_torchs_loader(threads, size):
    ours = list(wds.WebLoader(data(), batch_size=size, num_workers=threads, engine="threads"))
    torchs = list(wds.WebLoader(data(), batch_size=size))
    assert plain(ours) == plain(torchs)
    assert [type(part) for part in ours[0]] == [type(part) for part in torchs[0]]


def test_the_last_batch_can_be_dropped_and_the_collation_be_ones_own():
    options = {"num_workers": 2, "engine": "threads", "drop_last": True}
    made = wds.WebLoader(wds.DataPipeline(range(10)).map(slow), 4, collate_fn=sum, **options)
    assert list(made) == [6, 22]


def test_arguments_may_stand_where_torch_has_them():
    made = wds.WebLoader(
        wds.DataPipeline(range(4)), 2, False, None, None, 0, list, engine="threads"
    )
    assert list(made) == [[0, 1], [2, 3]]


def test_values_are_converted_as_torch_does_it():
    values = {
        "a": np.arange(3),
        "b": [np.float32(1.5), 2, "x", b"y", None],
        "c": ({"d": np.array(["s"])}, (1, 2)),
        "e": torch.ones(2),
    }
    assert str(arrays_to_tensors(values)) == str(default_convert(values))


@pytest.mark.parametrize(
    "record",
    [
        {"id": 1, "boxes": [[0, 1.5], []], "of": {"name": "x", "parts": [{"n": None}]}},
        {"id": 1, "deep": [{"size": (2, 3)}]},
        {"id": 1, "deep": [[np.arange(2)]]},
        {"id": 1, "deep": {"n": np.float32(2)}},
        [b"x", [True, ["y"]]],
    ],
)
def test_columns_of_records_are_converted_as_torch_does_it(record):
    column = [record] * 40
    assert str(arrays_to_tensors((column, 1))) == str(default_convert((column, 1)))


def test_a_record_that_holds_itself_is_refused_not_walked_for_ever():
    column = [[n] for n in range(40)]
    column.append(column)
    with pytest.raises(RecursionError):
        arrays_to_tensors(column)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "steam"}, "engine is one of"),
        ({"engine": "threads", "sampler": [1]}, "does not support sampler"),
        ({"engine": "threads", "shuffle": True}, r"WebLoader\(shuffle=True\) is for data sets"),
        ({"engine": "threads", "num_workers": -1}, "num_workers"),
        ({"engine": "threads", "max_memory": "much"}, "max_memory is a number of bytes"),
        ({"engine": "threads", "prefetch_factor": -2}, "prefetch_factor"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options, message):
    with pytest.raises(wds.PipelineError, match=message):
        wds.WebLoader(wds.DataPipeline(range(3)), **options)


def test_what_is_no_pipeline_is_left_to_processes():
    with pytest.raises(wds.PipelineError, match="wrap an iterable in DataPipeline"):
        wds.WebLoader([1, 2, 3], engine="threads")
    assert wds.WebLoader([1, 2, 3], engine="auto").engine == "processes"


def test_a_pipeline_that_waits_gets_threads():
    data = wds.DataPipeline(list(range(200)), wds.split_by_worker).map(slow)
    made = wds.WebLoader(data, num_workers=2, engine="auto")
    assert made.engine == "threads"
    assert "two threads do" in made.engine_choice


def test_a_pipeline_that_holds_the_lock_gets_processes():
    def heavy(n):
        return sum(i * i for i in range(20_000)) + n

    data = wds.DataPipeline(list(range(200)), wds.split_by_worker).map(heavy)
    made = wds.WebLoader(data, num_workers=2, engine="auto")
    assert made.engine == "processes"
    assert "lock" in made.engine_choice


def test_cheap_samples_stay_in_one_process():
    data = wds.DataPipeline(list(range(200)), wds.split_by_worker).map(str)
    made = wds.WebLoader(data, num_workers=2, engine="auto")
    assert made.engine == "threads"
    assert "less than sending it" in made.engine_choice


def test_measuring_takes_nothing_away():
    made = wds.WebLoader(
        wds.DataPipeline(list(range(99)), wds.split_by_worker).map(slow),
        None,
        num_workers=2,
        engine="auto",
    )
    assert list(made) == list(range(99))


def test_a_source_that_gives_its_samples_once_is_not_measured():
    taken = []

    def source():
        for n in range(50):
            taken.append(n)
            yield n

    data = wds.DataPipeline(source, wds.split_by_worker).map(slow)
    made = wds.WebLoader(data, num_workers=2, engine="auto")
    assert not taken
    assert "not measured" in made.engine_choice


@pytest.mark.parametrize(
    "source", [list(range(40)), lambda: iter(range(40)), wds.RoundRobin([list(range(40))])]
)
def test_what_no_stage_shares_out_to_workers_comes_once_with_auto(source):
    def heavy(n):
        return sum(i * i for i in range(20_000)) * 0 + n

    made = wds.WebLoader(wds.DataPipeline(source).map(heavy), None, num_workers=2, engine="auto")
    assert list(made) == list(range(40))
    assert "each worker process would yield all of" in made.engine_choice


def test_standard_input_is_read_on_threads_with_auto():
    made = wds.WebLoader(wds.WebDataset("-", shardshuffle=False), num_workers=2, engine="auto")
    assert made.engine == "threads"
    assert "standard input" in made.engine_choice


def test_cheap_items_are_worked_on_without_the_pool():
    class Heard(StatsListener):
        chunks = 0

        def worked(self, row, chunk):
            self.chunks += 1

    made = wds.WebLoader(
        wds.DataPipeline(range(9000)).map(str).map(int), None, num_workers=2, engine="threads"
    )
    made.loader.meter = Heard()
    assert list(made) == list(range(9000))
    assert made.loader.meter.chunks <= 20


def test_a_meter_hears_of_every_chunk_and_batch():
    class Heard(StatsListener):
        items = batches = 0

        def worked(self, row, chunk):
            self.items += len(chunk.tickets)

        def gave(self, waiting, size_bytes, seconds):
            self.batches += 1

    made = wds.WebLoader(
        wds.DataPipeline(range(100)).map(slow), 10, num_workers=2, engine="threads"
    )
    made.loader.meter = heard = Heard()
    list(made)
    assert heard.batches == 10
    assert 80 <= heard.items < 100  # the first ones are measured, not handed over


def test_it_runs_without_torch():
    program = """
import sys
sys.modules["torch"] = None
import time, numpy as np, penstock as wds
def row(n):
    time.sleep(1e-3)
    return np.full(3, n), n
for size, data in ((None, wds.DataPipeline(range(6)).map(row).batched(2)),
                   (2, wds.DataPipeline(range(6)).map(row))):
    batches = list(wds.WebLoader(data, batch_size=size, num_workers=2, engine="threads"))
    print([batch[1].tolist() for batch in batches], type(batches[0][0]).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "[[0, 1], [2, 3], [4, 5]] ndarray\n" * 2, done.stderr
