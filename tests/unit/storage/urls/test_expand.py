from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import UrlError
from penstock.storage.urls import expand_urls


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.tar", "a.tar", "c.tgz", "d.tar.gz", "note.txt", ".hidden.tar.1-2.part"):
        Path(name).touch()
    Path("deep/er").mkdir(parents=True)
    Path("deep/er/z.tar").touch()
    Path("folder.tar").mkdir()
    return tmp_path


def test_a_string_is_split_and_its_braces_expanded():
    assert expand_urls("x-{0..1}.tar::s3://b/{a,b}.tar") == [
        "x-0.tar",
        "x-1.tar",
        "s3://b/a.tar",
        "s3://b/b.tar",
    ]


def test_the_strings_of_a_list_are_expanded_but_not_split():
    assert expand_urls(["x-{0..1}.tar", Path("y.tar"), "a::b.tar"]) == [
        "x-0.tar",
        "x-1.tar",
        "y.tar",
        "a::b.tar",
    ]
    assert expand_urls(name for name in ("a", "b")) == ["a", "b"]


def test_variables_are_filled_in_and_may_name_others(monkeypatch):
    monkeypatch.setenv("WDS_ROOT", "${PLACE}/data")
    monkeypatch.setenv("WDS_PLACE", "/mnt/{a,b}")
    expected = ["/mnt/a/data/0.tar", "/mnt/b/data/0.tar"]
    assert expand_urls("${ROOT}/0.tar") == expected
    assert expand_urls(["${ROOT}/0.tar"]) == expected


def test_an_unset_variable_is_an_error_that_names_it(monkeypatch):
    monkeypatch.delenv("WDS_NOWHERE", raising=False)
    with pytest.raises(UrlError, match="WDS_NOWHERE"):
        expand_urls("${NOWHERE}/a.tar")


def test_variables_that_name_each_other_are_an_error(monkeypatch):
    monkeypatch.setenv("WDS_A", "${B}")
    monkeypatch.setenv("WDS_B", "${A}")
    with pytest.raises(UrlError, match="without end"):
        expand_urls("${A}")


@pytest.mark.usefixtures("folder")
def test_wildcards_of_local_names_are_looked_up_and_sorted():
    assert expand_urls("*.tar") == ["a.tar", "b.tar"]
    assert expand_urls("[ab]?tar::?.tgz") == ["a.tar", "b.tar", "c.tgz"]
    assert expand_urls("**/z.tar") == ["deep/er/z.tar"]
    assert expand_urls(["{a,b}*", Path("deep/er/*.tar")]) == ["a.tar", "b.tar", "deep/er/z.tar"]


@pytest.mark.usefixtures("folder")
def test_a_file_that_is_found_is_never_a_command_or_a_url(folder):
    for name in ("pipe:touch x.tar", "file:a.tar"):
        Path(name).touch()
    assert expand_urls("*:*.tar") == ["./file:a.tar", "./pipe:touch x.tar"]


def test_a_pattern_that_matches_nothing_is_an_error():
    with pytest.raises(UrlError, match=r"nothing-\*\.tar' matches no file"):
        expand_urls("nothing-*.tar")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["x[1].tar", "x{1,2}.tar", "what?.tar", "~x.tar", "${X}*.tar"])
def test_a_name_that_exists_is_no_pattern(name):
    Path(name).touch()
    assert expand_urls([name]) == [name]
    assert expand_urls(name) == [name]


@pytest.mark.usefixtures("folder")
def test_a_folder_with_a_slash_stands_for_its_shards():
    assert expand_urls("./") == ["./a.tar", "./b.tar", "./c.tgz", "./d.tar.gz"]
    assert expand_urls(Path("deep/er")) == ["deep/er/z.tar"]


@pytest.mark.usefixtures("folder")
def test_a_folder_that_is_missing_or_has_no_shards_is_an_error():
    with pytest.raises(UrlError, match="no 'missing/'"):
        expand_urls("missing/")
    with pytest.raises(UrlError, match="holds no"):
        expand_urls("deep/")


def test_the_home_folder_is_filled_in(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert expand_urls("~/{a,b}.tar") == ["/home/someone/a.tar", "/home/someone/b.tar"]


def test_a_command_keeps_its_wildcards():
    assert expand_urls("pipe:cat ~/*.tar") == ["pipe:cat ~/*.tar"]
    assert expand_urls("pipe:cat {0..1}.tar") == ["pipe:cat 0.tar", "pipe:cat 1.tar"]
    assert expand_urls("pipe:cat x.json") == ["pipe:cat x.json"]


def test_a_command_keeps_what_only_looks_like_a_group():
    command = "pipe:awk '{print $1, $2}' ${HOME}/x"
    assert expand_urls([command]) == [command]


@pytest.mark.parametrize("url", ["s3://b/*.tar", "http://h/a?b=[1]", "-", "C:/x.tar", "s3://b/x/"])
def test_wildcards_of_other_places_stay(url):
    assert expand_urls(url) == [url]


@pytest.mark.parametrize("urls", [[], (), iter(())])
def test_no_shards_is_an_error(urls):
    with pytest.raises(UrlError, match="no shards"):
        expand_urls(urls)


@pytest.mark.parametrize("urls", ["", "a.tar::", "::a.tar", [""]])
def test_an_empty_name_is_an_error(urls):
    with pytest.raises(UrlError, match="no shards"):
        expand_urls(urls)


@pytest.mark.parametrize("urls", ["a.yaml", "s3://b/a.YML", ["a.json"]])
def test_a_spec_file_is_refused_for_now(urls):
    with pytest.raises(UrlError, match="is a spec: read it with WebDataset"):
        expand_urls(urls)


def test_things_that_are_no_names_are_refused():
    with pytest.raises(UrlError, match="holds 3"):
        expand_urls([3])


def test_a_path_cannot_hold_a_url(tmp_path, monkeypatch):
    with pytest.raises(UrlError, match="give a string"):
        expand_urls(Path("s3://bucket/a.tar"))
    monkeypatch.chdir(tmp_path)
    Path("run:1.tar").touch()
    assert expand_urls(Path("run:1.tar")) == ["./run:1.tar"]


@pytest.mark.parametrize("given", [None, 3, b"a.tar"])
def test_what_names_no_shards_is_refused_with_its_value(given):
    with pytest.raises(UrlError, match=f"a string, a path or a list.*{given!r}"):
        expand_urls(given)
