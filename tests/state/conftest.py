"""Shards for the tests, written once."""

from __future__ import annotations

import os
import sys

import pytest

from penstock.engine import item_cost
from penstock.shards.index import open_index

sys.path.insert(0, os.path.dirname(__file__))  # spawned workers inherit it

from numbered import write_shards


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


@pytest.fixture
def pool_gets_every_item(monkeypatch):
    """Send items to the pool of threads even though they are cheap."""
    monkeypatch.setattr(item_cost, "CHEAP_SECONDS", -1.0)
    monkeypatch.setattr(item_cost, "MEASURED", 2)


@pytest.fixture
def kills(request):
    """How often test_mixtures.py kills the ranks of its job."""
    return request.config.getoption("--kills")
