from __future__ import annotations

import pytest

from penstock.codecs import basichandlers, call_extension_handler, gzfilter, handle_extension
from penstock.errors import PipelineError


@pytest.mark.parametrize(
    ("extensions", "key", "handled"),
    [
        ("jpg jpeg", ".jpeg", True),
        (".png", ".png", True),
        ("png", ".a.png", True),
        ("seg.jpg", ".a.seg.jpg", True),
        ("seg.jpg", ".seg.jpg", True),
        ("seg.jpg", ".jpg", False),
        ("eg.jpg", ".seg.jpg", False),
        ("PNG", ".png", True),
        ("png", ".PNG", True),
        (["png", "jpg"], ".jpg", True),
        ("png", ".png.txt", False),
    ],
)
def test_whole_components_are_compared_from_the_end_in_any_case(extensions, key, handled):
    assert handle_extension(extensions, len)(key, b"abc") == (3 if handled else None)
    assert call_extension_handler(key, b"abc", len, extensions) == (3 if handled else None)


def test_a_handler_is_a_value_that_prints_well():
    assert handle_extension(".png jpg", len) == handle_extension("png jpg", len)
    assert repr(handle_extension(".png a.jpg", len)) == "handle_extension('png a.jpg', len)"
    assert (repr(gzfilter), repr(basichandlers)) == ("gzfilter", "basichandlers")


def test_a_handler_without_extensions_or_function_is_refused():
    with pytest.raises(PipelineError):
        handle_extension("", len)
    with pytest.raises(PipelineError):
        handle_extension("png", "rgb8")


def test_the_built_in_table_can_be_called_as_a_function():
    assert basichandlers(".a.cls", b"3") == 3
    assert basichandlers(".jpg", b"3") is None
