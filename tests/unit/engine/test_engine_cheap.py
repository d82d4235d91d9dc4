"""Cheap samples, worked on without the pool: their large fields are read there, too."""

from __future__ import annotations

import pytest

import penstock as wds
from penstock.engine import item_cost as pace
from penstock.engine import segment_run as row
from penstock.shards.lazy_bytes import LATER_BYTES, Later
from penstock.testing import assert_resumes


@pytest.fixture(autouse=True)
def _cheap(monkeypatch):
    """All samples are worked on without threads: in short stretches, each with a few measured."""
    monkeypatch.setattr(pace, "CHEAP_SECONDS", 10.0)
    monkeypatch.setattr(pace, "DEAR_SECONDS", 10.0)
    monkeypatch.setattr(pace, "MEASURED", 4)
    monkeypatch.setattr(row, "CHEAP_RUN", 7)


def test_cheap_samples_are_made_whole_before_a_function_sees_them(tmp_path):
    name = tmp_path / "large.tar"
    with wds.TarWriter(str(name)) as sink:
        for number in range(60):
            sink.write({"__key__": f"{number:04}", "bin": bytes([number]) * 2 * LATER_BYTES})

    def loader(threads=2):
        data = wds.WebDataset([str(name)]).map(lambda sample: (type(sample["bin"]), sample["bin"]))
        return wds.WebLoader(data, num_workers=threads, batch_size=None, engine="threads")

    seen = list(loader())
    assert [(kind, data[0], len(data)) for kind, data in seen] == [
        (bytes, number, 2 * LATER_BYTES) for number in range(60)
    ]
    assert_resumes(loader, every=5)


def test_a_cheap_sample_that_cannot_be_read_is_a_matter_of_the_reading_handler(
    tmp_path, monkeypatch
):
    name = tmp_path / "cut.tar"
    with wds.TarWriter(str(name)) as sink:
        for number in range(60):
            sink.write({"__key__": f"{number:04}", "bin": bytes(2 * LATER_BYTES)})
    sound = Later.read
    end = name.stat().st_size  # from the middle on they stand behind it

    def read(later):
        beyond = end if later.offset > end // 2 else 0
        return sound(Later(later.file, later.offset + beyond, later.size))

    monkeypatch.setattr(Later, "read", read)

    def loader(handler):
        data = wds.WebDataset([str(name)], handler=handler).map(lambda sample: sample["__key__"])
        return wds.WebLoader(data, num_workers=2, batch_size=None, engine="threads")

    with pytest.raises(wds.ShardError, match=r"cut short.*cut\.tar"):
        list(loader(wds.reraise_exception))
    careful = loader(wds.ignore_and_continue)
    keys = list(careful)
    assert keys == [f"{number:04}" for number in range(len(keys))]
    assert 4 < len(keys) < 60
    assert sum(careful.stats().skipped.values()) == 60 - len(keys)
    assert list(loader(wds.ignore_and_stop)) == keys
