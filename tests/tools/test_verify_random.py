"""Random damage: what reading refuses, ``verify`` finds; what ``repair`` writes is good."""

from __future__ import annotations

import gzip
import random
import tarfile
import warnings

import pytest
from tool_shards import picture, tar

import penstock as wds
from penstock import tools

ROUNDS = 20
JPG = picture(1)
CONTENT = {"PS303", "PS305"}
"""Findings about the content of fields, which neither reading nor repair looks at."""


def damaged(data, rng):
    """The bytes cut, with bits flipped, with a piece replaced, or as they are."""
    data = bytearray(data)
    place = rng.randrange(len(data))
    kind = rng.randrange(4)
    if kind == 0:
        return bytes(data[:place])
    if kind == 1:
        data[place] ^= 1 << rng.randrange(8)
    elif kind == 2:
        data[place : place + rng.randint(1, 2000)] = rng.randbytes(rng.randint(0, 2000))
    return bytes(data)


def random_members(rng):
    members = []
    for number in range(rng.randint(1, 6)):
        key = rng.choice(["", "é", "d/"]) + f"k{number}" * rng.choice([1, 1, 40])
        for field in rng.sample(["jpg", "txt", "json"], rng.randint(1, 3)):
            data = JPG if field == "jpg" else b"1" * rng.choice([1, 511, 512, 513, 3000])
            members.append((f"{key}.{field}", data))
    return members


@pytest.mark.parametrize("seed", range(6))
def test_random_damage_is_found_and_repaired(seed, tmp_path) -> None:
    rng = random.Random(seed)
    path, good = tmp_path / "x.tar", tmp_path / "good.tar"
    for _ in range(ROUNDS):
        tar(path, random_members(rng), format=rng.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
        data = damaged(path.read_bytes(), rng)
        if rng.random() < 0.3:
            data = damaged(gzip.compress(data), rng)
        path.write_bytes(data)
        found = list(tools.verify(str(path), reader="webdataset,hub,open_clip", decode=True))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                list(wds.WebDataset(str(path), shardshuffle=False, empty_check=False))
        except wds.ShardError:
            assert {one.code[:3] for one in found} & {"PS1", "PS2"}
        list(tools.repair(str(path), str(good), force=True))
        if good.exists():
            after = {one.code for one in tools.verify(str(good)) if one.severity == "error"}
            assert after <= CONTENT
            good.unlink()
