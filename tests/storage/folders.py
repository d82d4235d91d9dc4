"""Checks that every store must pass with a folder of shards."""

from __future__ import annotations

import penstock as wds
from penstock.storage import open_url
from penstock.storage.listing import list_urls


def write_list_and_read(folder, list_store):
    """Write a data set and read it by glob, by folder and by list."""
    with wds.ShardWriter(f"{folder}/train-%06d.tar", maxcount=10, verbose=0) as writer:
        for number in range(25):
            writer.write({"__key__": f"{number:06d}", "cls": number})
    found = [listed.url for listed in list_store(f"{folder}/")]
    shards = [f"{folder}/train-{shard:06d}.tar" for shard in range(3)]
    assert [url for url in found if url.endswith(".tar")] == shards
    for urls in (f"{folder}/*.tar", f"{folder}/", shards):
        data = wds.WebDataset(urls, shardshuffle=False).decode()
        assert [sample["cls"] for sample in data] == list(range(25))


def list_without_those_below(folder, list_store):
    """Check that a listing that is not deep stops at the next slash."""
    for name in ("a.tar", "deep/b.tar", "deep/er/c.tar"):
        with open_url(f"{folder}/{name}", "wb") as stream:
            stream.write(b"x")
    assert [one.url for one in list_store(f"{folder}/", deep=False)] == [f"{folder}/a.tar"]
    assert len(list(list_store(f"{folder}/"))) == 3
    assert list_urls(f"{folder}/*/*.tar") == [f"{folder}/deep/b.tar"]
