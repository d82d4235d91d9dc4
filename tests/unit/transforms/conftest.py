"""The native module, built once for these tests in a temporary folder."""

from __future__ import annotations

import pytest

from penstock.errors import PipelineError
from penstock.transforms import native as native_module


@pytest.fixture(scope="session")
def native_file(tmp_path_factory):
    try:
        return native_module.build(tmp_path_factory.mktemp("native") / "picture.so")
    except PipelineError as error:
        pytest.skip(f"no native module: {error}")


@pytest.fixture(scope="session")
def native(native_file):
    """The function of the native module."""
    return native_module.open_module(native_file)
