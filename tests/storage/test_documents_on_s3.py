"""A dashed set on an S3 server: converted, indexed, shuffled, resumed and moved to other ranks."""

from __future__ import annotations

import io
import json
from itertools import islice

import numpy as np
import pytest
from PIL import Image

import penstock as wds
from penstock.documents import convert
from penstock.errors import StaleIndexError
from penstock.storage.auth.named_keys import use_keys
from penstock.testing import assert_resumes

DOCUMENTS = 60


def picture(seed):
    pixels = np.random.default_rng(seed).integers(0, 255, (16, 16, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG")
    return stream.getvalue()


@pytest.fixture
def dashed(seaweed, no_keys, tmp_path, monkeypatch):
    """The URL of six dashed shards in a bucket that a named key opens, and their local copies."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("WDS_CACHE", raising=False)
    use_keys({"team": {"buckets": ["shards"], **seaweed.key()}})
    (tmp_path / "images").mkdir()
    with open(tmp_path / "docs.jsonl", "w") as lines:
        for n in range(DOCUMENTS):
            infos = []
            for i in range(n % 3):
                name = f"i{n}-{i}.jpg"
                (tmp_path / "images" / name).write_bytes(picture(10 * n + i))
                infos.append({"image_name": name, "matched_text_index": i, "matched_sim": 0.3})
            data = {"text_list": [f"text {n}.{i}" for i in range(3)], "image_info": infos}
            lines.write(json.dumps(data) + "\n")
    options = {"to": "dashed", "images": tmp_path / "images", "maxcount": 10}
    local = convert(str(tmp_path / "docs.jsonl"), str(tmp_path / "d-%03d.tar"), **options)
    prefix = seaweed.fresh()
    written = convert(str(tmp_path / "docs.jsonl"), f"{prefix}/d-%03d.tar", **options)
    assert written == [f"{prefix}/d-{n:03d}.tar" for n in range(6)]
    return f"{prefix}/d-{{000..005}}.tar", local


def known(documents):
    return [(document.key, document.pieces) for document in documents]


def read(urls, **options):
    return wds.WebDataset(urls, group="dashed", **options).documents()


def test_documents_stream_from_s3_as_from_local_shards(dashed):
    url, local = dashed
    found = known(read(url))
    assert len(found) == DOCUMENTS
    assert found == known(read(local))


def test_an_index_of_documents_on_s3_gives_any_order(dashed):
    url, local = dashed
    assert known(read(url, index=True)) == known(read(local))
    shuffled = known(read(url, index=True, shardshuffle=3, seed=4))
    assert shuffled != known(read(local))
    assert sorted(key for key, _ in shuffled) == [f"{n:09d}" for n in range(DOCUMENTS)]
    with pytest.raises(StaleIndexError, match="dashed"):
        list(wds.WebDataset(url, index=True))


def test_documents_from_s3_resume_after_any_of_them(dashed):
    url, _ = dashed
    for options in ({"shardshuffle": 4}, {"index": True, "shardshuffle": 3}):
        assert_resumes(lambda o=options: read(url, **o).shuffle(7), every=17)


def test_documents_from_s3_move_to_other_ranks_in_the_middle_of_an_epoch(dashed, monkeypatch):
    url, _ = dashed

    def make():
        options = {"index": True, "shardshuffle": 3, "lanes": 6, "ends": "exact"}
        return read(url, **options).map(lambda document: document.key).listed(2)

    seen, states = [], None
    for world, steps in ((1, 4), (2, 3), (3, 2), (1, None)):
        saved = []
        for rank in range(world):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", str(world))
            pipeline = make()
            if states is not None:
                pipeline.load_state_dict(states)
            for keys in islice(iter(pipeline), steps):
                seen += keys
            saved.append(json.loads(json.dumps(pipeline.state_dict())))
        states = saved
    assert sorted(seen) == [f"{n:09d}" for n in range(DOCUMENTS)]


def test_shards_on_s3_are_read_once_into_memory(dashed, tmp_path):
    url, local = dashed
    index = wds.build_index(url, tmp_path / "docs.parquet", group="dashed")
    kept = wds.IndexedDataset(url, index, memory="ram")
    wanted = list(wds.WebDataset(local, group="dashed"))
    own = ("__url__", "__local_path__")
    assert [{f: v for f, v in sample.items() if f not in own} for sample in kept] == [
        {f: v for f, v in sample.items() if f not in own} for sample in wanted
    ]
    use_keys(None)  # from now on nothing can be read from the bucket
    assert kept[7]["__key__"] == "000000007"
