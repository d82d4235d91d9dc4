from __future__ import annotations

import pytest

from penstock.errors import UrlError
from penstock.storage.urls import local_path, scheme_of


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("a.tar", ""),
        ("/data/a.tar", ""),
        ("-", ""),
        ("C:\\data\\a.tar", ""),
        ("C:/data/a.tar", ""),
        ("./run:1.tar", ""),
        ("2024-01-01T10:00.tar", ""),
        ("data/x:y.tar", ""),
        ("pipe:cat a.tar", "pipe"),
        ("file:a.tar", "file"),
        ("S3://bucket/a.tar", "s3"),
        ("https://host/a.tar", "https"),
        ("gs+x://a", "gs+x"),
    ],
)
def test_the_scheme_of(url, scheme):
    assert scheme_of(url) == scheme


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("a.tar", "a.tar"),
        ("a%20b?c#d.tar", "a%20b?c#d.tar"),
        ("file:a.tar", "a.tar"),
        ("file:/d/a%20b.tar", "/d/a b.tar"),
        ("file:///d/a?b#c.tar", "/d/a?b#c.tar"),
        ("file://localhost/d/a.tar", "/d/a.tar"),
        ("-", None),
        ("pipe:cat a", None),
        ("s3://b/a", None),
    ],
)
def test_the_local_path_of(url, path):
    assert local_path(url) == path


def test_a_file_url_of_another_machine_is_an_error_that_tells_how_to_write_it():
    with pytest.raises(UrlError, match=r"file:///data/a\.tar .* file:data/a\.tar"):
        local_path("file://data/a.tar")
