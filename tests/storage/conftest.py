"""The servers that the tests of storage run against."""

from __future__ import annotations

import pytest
from servers_s3 import as_admin, juicefs, key_file, no_keys, s3_server, seaweed  # noqa: F401

pytest.register_assert_rewrite("folders")
