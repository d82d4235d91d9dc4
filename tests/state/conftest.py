"""Shards for the tests, written once."""

from __future__ import annotations

import os
import sys

import pytest

from penstock.shards.index import open_index

sys.path.insert(0, os.path.dirname(__file__))  # for spawned workers, too

from numbered import PLACES, write_shards


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """No test depends on where the whole run takes place."""
    for name in PLACES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def urls(tmp_path_factory):
    """Four shards of six samples, 0 to 23, with an index."""
    found = write_shards(tmp_path_factory.mktemp("shards"))
    open_index(found, True)
    return found


@pytest.fixture(scope="session")
def others(tmp_path_factory):
    """Three shards of five samples, 100 to 114, with an index."""
    found = write_shards(tmp_path_factory.mktemp("others"), 3, 5, first=100, name="e")
    open_index(found, True)
    return found
