"""A password or signature in a web address is sent, and shown nowhere."""

from __future__ import annotations

import io
import logging
import pickle
import tarfile
import traceback

import pytest
from faulty import FaultyServer, status

import penstock
from penstock.errors import Origin, PenstockError, ShardError
from penstock.shards.index import build_index, open_index
from penstock.redact import named, shown, shown_value
from penstock.storage import open_url

SECRETS = ("geheim", "sekrit")


def shard(*, damaged=False):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for key in ("a", "b"):
            member = tarfile.TarInfo(f"{key}.txt")
            member.size = 5
            archive.addfile(member, io.BytesIO(b"hello"))
    data = file.getvalue()
    return data[:1024] + b"x" * 512 + data[1536:] if damaged else data


@pytest.fixture
def server():
    with FaultyServer(good=shard(), damaged=shard(damaged=True), page=b'{"error": 1}') as server:
        yield server


def secret(url):
    return url.replace("://", "://me:geheim@") + "?part=7&X-Amz-Signature=sekrit&token=sekrit"


def everything_of(error):
    """All that a log or a report may show of an error."""
    told = [traceback.format_exception(error), repr(error), str(error), error.args]
    told += [vars(error), getattr(error, "__notes__", ()), pickle.dumps(error)]
    return " ".join(map(repr, told)) + " ".join(map(str, told))


def hides(text):
    return not any(word in text for word in SECRETS)


def test_a_sample_names_its_shard_without_the_secrets(server):
    url = secret(server.url("good"))
    samples = list(penstock.WebDataset(url, shardshuffle=False))
    assert [s["__url__"] for s in samples] == [server.url("good") + "?part=7"] * 2
    assert server.asked[0].headers["authorization"].startswith("Basic ")
    assert "sekrit" in server.asked[0].path


def test_a_pipeline_shows_no_secrets(server, capsys):
    url = secret(server.url("good"))
    for urls in (url, [url, url]):
        data = penstock.WebDataset(urls, shardshuffle=False, verbose=True).decode()
        assert hides(repr(data))
        assert hides(data.explain() if hasattr(data, "explain") else "")
        assert hides(repr(penstock.IndexedDataset(urls)))
        list(data)
    printed = capsys.readouterr()
    assert hides(printed.out + printed.err)
    assert server.url("good") in printed.err


def test_an_error_about_what_is_in_a_shard_hides_them(server, caplog):
    caplog.set_level(logging.DEBUG)
    url = secret(server.url("damaged"))
    with pytest.raises(ShardError) as caught:
        list(penstock.WebDataset(url, shardshuffle=False))
    assert server.url("damaged") in str(caught.value)
    assert hides(everything_of(caught.value))
    assert hides(caplog.text)


def test_an_error_in_the_users_function_hides_them(server):
    def fails(sample):
        raise KeyError("what")

    with pytest.raises(KeyError) as caught:
        list(penstock.WebDataset(secret(server.url("good")), shardshuffle=False).map(fails))
    assert server.url("good") in str(caught.value.__notes__)
    assert hides(everything_of(caught.value))


def test_an_error_about_a_field_hides_them(server):
    data = penstock.WebDataset(secret(server.url("good")), shardshuffle=False)
    with pytest.raises(PenstockError) as caught:
        list(data.rename(jpg="txt").decode("rgb8"))
    assert hides(everything_of(caught.value))


def test_a_refusal_hides_them(server, caplog):
    caplog.set_level(logging.DEBUG)
    server.always = status(403)
    with pytest.raises(PenstockError) as caught:
        open_url(secret(server.url("good"))).read()
    assert hides(everything_of(caught.value) + caplog.text)


def test_an_index_holds_no_secrets_and_is_found_under_another_signature(server, tmp_path):
    url, out = secret(server.url("good")), tmp_path / "x.parquet"
    build_index(url, out)
    assert hides(out.read_bytes().decode("latin-1"))
    server.asked.clear()
    again = url.replace("sekrit", "sekrit2")
    index = open_index(again, out)
    assert index.shards[0].url == again
    assert penstock.IndexedDataset(again, index=out)[1]["__url__"] == named(url)
    assert not server.asked[0].path.endswith("token=sekrit")
    server.asked.clear()
    build_index(again, out)  # nothing is new: the size and version are asked for
    assert all(a.method == "GET" and "range" in a.headers for a in server.asked)


def test_the_kept_index_has_the_same_place_under_another_signature(server, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    url = secret(server.url("good"))
    assert penstock.shards.index.default_index_path(url) == penstock.shards.index.default_index_path(
        url.replace("sekrit", "sekrit2").replace("geheim", "other")
    )


def test_two_objects_have_two_names_and_one_has_one():
    base = "https://host/get?shard=%s&sv=1&se=%s&sig=%s"
    assert named(base % (1, 2, 3)) == named(base % (1, 5, 6)) == "https://host/get?shard=1"
    assert named(base % (2, 2, 3)) != named(base % (1, 2, 3))
    assert named("https://host/a?st=1") == "https://host/a?st=1"  # no signature, so no part of one


@pytest.mark.parametrize(
    "command",
    [
        "curl -sf https://me:geheim@host/a.tar?token=sekrit",
        "curl -u me:geheim http://host/a.tar",
        "curl --user 'me:geheim' http://host/a.tar",
        "curl -H 'Authorization: Bearer geheim' http://host/a.tar",
        'wget --password=geheim -O- "http://host/a.tar?sig=sekrit"',
        "curl -H 'X-Auth-Token: geheim' http://host/a.tar",
        "AWS_SECRET_ACCESS_KEY=geheim TOKEN='sekrit' get s3://host/a.tar",
    ],
)
def test_a_command_is_shown_without_them(command):
    url = f"pipe:{command}"
    for text in (
        shown(url),
        named(url),
        str(Origin(url)),
        repr(Origin(url)),
        shown_value([url])[0],
    ):
        assert hides(text)
        assert "host/a.tar" in text


@pytest.mark.parametrize("word", ["key", "code", "signal", "author", "shard"])
def test_a_word_that_only_looks_like_a_secret_tells_objects_apart(word):
    assert named(f"https://host/get?{word}=a") != named(f"https://host/get?{word}=b")
    name = named(f"https://host/a.tar?key=geheim&code=sekrit&{word}=a")
    assert hides(name)
    assert named(name) == name


@pytest.mark.parametrize("word", ["sig", "x-sig", "signature", "auth", "auth_token", "oauth2"])
def test_the_words_of_secrets_are_left_out(word):
    assert named(f"https://host/a.tar?{word}=geheim&n=1") == "https://host/a.tar?n=1"


def test_other_names_stay_as_they_are():
    for url in ("a.tar", "s3://b/a?b.tar", "x@y:z.tar", "pipe:cat a.tar", "az://c/a.tar", "a?b=c"):
        assert named(url) is url or named(url) == url
        assert Origin(url).url == url
