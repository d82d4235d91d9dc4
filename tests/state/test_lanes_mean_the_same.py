"""A pipeline without lanes=… is one stream; lanes that would change its meaning are refused."""

from __future__ import annotations

import pytest

import penstock as wds


@pytest.fixture
def data(tmp_path):
    with wds.ShardWriter(str(tmp_path / "d-%02d.tar"), maxcount=25, index=True) as sink:
        for number in range(100):
            sink.write({"__key__": f"{number:03d}", "cls": number})
    return str(tmp_path / "d-{00..03}.tar")


def keys(pipeline):
    return [sample["__key__"] for sample in pipeline]


def test_an_indexed_data_set_is_one_stream_for_every_stage(data):
    indexed = wds.WebDataset(data, index=True, shardshuffle=2)
    assert len(keys(indexed.slice(10))) == 10
    kept = indexed.decode().map(lambda sample: sample if sample["cls"] % 10 else None)
    sizes = [len(batch["cls"]) for batch in kept.batched(16, partial=False)]
    assert sizes == [16] * 5
    assert [len(batch) for batch in kept.listed(16)] == [16] * 5 + [10]


@pytest.mark.parametrize("lanes", [None, 4])
def test_what_a_cache_kept_is_the_same_in_the_next_epoch(data, tmp_path, lanes):
    for number, cached in enumerate(("mcached", "lmdb_cached", "dbcache")):
        arguments = {
            "mcached": (),
            "lmdb_cached": (str(tmp_path / f"lmdb-{lanes}"), 1e7),
            "dbcache": (str(tmp_path / f"kept-{lanes}-{number}.db"), 1000),
        }[cached]
        dataset = wds.WebDataset(data, index=True, lanes=lanes)
        dataset = getattr(dataset, cached)(*arguments)
        assert sorted(keys(dataset)) == sorted(keys(dataset)) == [f"{n:03d}" for n in range(100)]


def test_lanes_that_nothing_deals_to_are_refused(data):
    everything = wds.DataPipeline(wds.SimpleShardList(data), wds.tarfile_to_samples(), lanes=4)
    with pytest.raises(wds.PipelineError, match="would yield everything 4 times"):
        list(everything)
    assert len(keys(wds.WebDataset(data, lanes=8))) == 100  # more lanes than shards


def test_a_loader_with_a_large_buffer_sends_its_state_now_and_then(data, monkeypatch):
    pytest.importorskip("torch")
    from penstock.loaders import worker_state as stamping

    monkeypatch.setattr(stamping, "SAMPLES_PER_STATE", 8)
    stamped = stamping.StatefulDataset(wds.WebDataset(data, shardshuffle=4).shuffle(80))
    states = [isinstance(said, dict) for stamp in stamped for said in stamp.lanes.values()]
    assert states[0]
    assert 0.02 < sum(states) / len(states) < 0.9
