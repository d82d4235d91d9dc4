"""Web servers keep the promises of every opener."""

from __future__ import annotations

import pytest
from faulty import FaultyServer

from penstock.testing.openers import OpenerContract


class TestHttp(OpenerContract):
    schemes = ("http", "https")
    seekable = True

    @pytest.fixture(autouse=True)
    def _serve(self):
        with FaultyServer() as self.server:
            yield

    def make_url(self, tmp_path, data):
        self.server.objects["/a.tar"] = data
        return self.server.url("a")

    def missing_url(self, tmp_path):
        return self.server.url("missing")

    def target_url(self, tmp_path):
        return self.server.url("out")
