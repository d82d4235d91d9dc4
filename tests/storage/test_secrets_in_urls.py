"""A password or signature in a web address is sent, and shown nowhere."""

from __future__ import annotations

import json
import logging
import pickle
import traceback

import pytest
from faulty import FaultyServer, status

import penstock
from penstock.errors import Origin, PenstockError, ShardError
from penstock.redact import canonical_url, redact, redact_for_disk, redact_value
from penstock.shards.index import build_index, open_index
from penstock.storage import open_url
from penstock.storage.cache.shard_cache import CachedShard, ShardCache
from tar_files import tar_bytes
from waiting import wait_for_threads

SECRETS = ("geheim", "sekrit")


def shard(*, damaged=False):
    data = tar_bytes([("a.txt", b"hello"), ("b.txt", b"hello")])
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
    assert penstock.IndexedDataset(again, index=out)[1]["__url__"] == canonical_url(url)
    assert not server.asked[0].path.endswith("token=sekrit")
    server.asked.clear()
    build_index(again, out)  # nothing is new: the size and version are asked for
    assert all(a.method == "GET" and "range" in a.headers for a in server.asked)


def test_the_kept_index_has_the_same_place_under_another_signature(server, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    url = secret(server.url("good"))
    assert penstock.shards.index.default_index_path(
        url
    ) == penstock.shards.index.default_index_path(
        url.replace("sekrit", "sekrit2").replace("geheim", "other")
    )


def test_two_objects_have_two_names_and_one_has_one():
    base = "https://host/get?shard=%s&sv=1&se=%s&sig=%s"
    assert (
        canonical_url(base % (1, 2, 3))
        == canonical_url(base % (1, 5, 6))
        == "https://host/get?shard=1"
    )
    assert canonical_url(base % (2, 2, 3)) != canonical_url(base % (1, 2, 3))
    assert (
        canonical_url("https://host/a?st=1") == "https://host/a?st=1"
    )  # no signature, so no part of one


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
        redact(url),
        canonical_url(url),
        str(Origin(url)),
        repr(Origin(url)),
        redact_value([url])[0],
    ):
        assert hides(text)
        assert "host/a.tar" in text


@pytest.mark.parametrize("word", ["key", "code", "signal", "author", "shard"])
def test_a_word_that_only_looks_like_a_secret_tells_objects_apart(word):
    assert canonical_url(f"https://host/get?{word}=a") != canonical_url(
        f"https://host/get?{word}=b"
    )
    name = canonical_url(f"https://host/a.tar?key=geheim&code=sekrit&{word}=a")
    assert hides(name)
    assert canonical_url(name) == name


@pytest.mark.parametrize("word", ["sig", "x-sig", "signature", "auth", "auth_token", "oauth2"])
def test_the_words_of_secrets_are_left_out(word):
    assert canonical_url(f"https://host/a.tar?{word}=geheim&n=1") == "https://host/a.tar?n=1"


def test_other_names_stay_as_they_are():
    for url in ("a.tar", "s3://b/a?b.tar", "x@y:z.tar", "pipe:cat a.tar", "az://c/a.tar", "a?b=c"):
        assert canonical_url(url) is url or canonical_url(url) == url
        assert Origin(url).url == url


# ── on the disk ─────────────────────────────────────────────────────────────────────────

COMMANDS = [
    "TOKEN=geheim cat {path}",
    "MY_VARIABLE='geheim sekrit' cat {path}",
    "env X=geheim cat {path}",
    "cat {path} # geheim",
    "cat {path} && : -H 'X-Api-Key: geheim' -u me:sekrit",
    "cat {path} && : https://me:geheim@host/a.tar?sig=sekrit",
]
ADDRESSES = [
    "/good.tar?X-Amz-Signature=sekrit",
    "/good.tar?key=geheim&code=sekrit",
    "/good.tar#geheim",
    "/good.tar?a=b#geheim",
]


def everything_in(folder):
    """The names and contents of all files, as one text."""
    names = [path.relative_to(folder) for path in folder.rglob("*")]
    return f"{names} " + " ".join(
        path.read_bytes().decode("latin-1") for path in folder.rglob("*.json")
    )


@pytest.mark.parametrize(
    "url_to_name", [None, lambda url: url, penstock.cache.url_to_cache_name, penstock.pipe_cleaner]
)
def test_a_cache_holds_no_secrets(server, tmp_path, url_to_name):
    (tmp_path / "a.tar").write_bytes(shard())
    base = server.url("good").removesuffix("/good.tar")
    server.objects["/good.tar"] = server.objects["/good.tar"] + bytes(1000)
    urls = [f"pipe:{command.format(path=tmp_path / 'a.tar')}" for command in COMMANDS]
    urls += [base + address for address in ADDRESSES]
    urls += [secret(server.url("good")), secret(server.url("good")).replace("http", "HTTP")]
    cache = ShardCache(tmp_path / "cache", url_to_name=url_to_name)
    for url in urls:
        for _ in range(2):
            with cache.open(url) as stream:
                assert len(stream.read()) >= len(shard())
            wait_for_threads("penstock-cache")
    assert hides(everything_in(tmp_path / "cache"))
    assert cache.opened == (len(urls), len(urls))
    assert {problem for _, problem in cache.verify()} == {None}


def test_a_cache_that_was_filled_under_other_names_is_still_used(server, tmp_path):
    """Earlier versions made the readable end of a name, and the URL in a note, in another way."""
    url = server.url("good") + "?part=7"
    cache = ShardCache(tmp_path / "cache")
    with cache.open(url) as stream:
        stream.read()
    wait_for_threads("penstock-cache")
    (entry,) = cache.entries()
    for suffix in ("", ".json"):
        path = tmp_path / "cache" / f"{entry.name}{suffix}"
        path.rename(path.with_name(f"{entry.name[:30]}good.tar_{suffix}"))
    note = json.loads(path.with_name(f"{entry.name[:30]}good.tar_.json").read_text())
    del note["whole_url"]
    note["url"] = server.url("good") + "?…"
    path.with_name(f"{entry.name[:30]}good.tar_.json").write_text(json.dumps(note))
    with cache.open(url) as stream:
        assert isinstance(stream, CachedShard)
    assert [problem for _, problem in cache.verify()] == [None]  # the source is not asked


@pytest.mark.parametrize(
    "url",
    [
        "PIPE:curl -u me:geheim http://host/a.tar",
        "pipe:curl -ume:geheim http://host/a.tar",
        "pipe:curl --user=me:geheim --header 'X-Vault: sekrit' http://host/a.tar",
        "pipe:curl -H X-Anything:geheim http://host/a.tar",
        "pipe:curl -b session=geheim http://host/a.tar",
        'pipe:curl --cookie "a=geheim; b=sekrit" http://host/a.tar',
        "pipe:curl --oauth2-bearer geheim http://host/a.tar",
        "pipe:aws s3 cp --sse-c-key geheim s3://host/a.tar -",
        "pipe:wget --http-password geheim -O- http://host/a.tar",
        "pipe:sshpass -p geheim ssh host/a.tar",
        "pipe:get 'Bearer geheim' http://host/a.tar",
        "pipe:AWS_ACCESS_KEY_ID=geheim AWS_SECRET_ACCESS_KEY='sekrit' get s3://host/a.tar",
        "https://host/a.tar#token=geheim",
        "https://host/a.tar?n=1#token=geheim",
        "https://host/a.tar;jsessionid=geheim",
        "https://host/a.tar&token=geheim",
        "https://host/a.tar;token=geheim?part=7",
        " https://me:geheim@host/a.tar?sig=sekrit",
        "simplecache::https://me:geheim@host/a.tar?sig=sekrit",
        "git+https://me:geheim@host/a.tar?sig=sekrit",
        "HTTPS://me:geheim@host/a.tar?SIG=sekrit",
        "https://geheim@host/a.tar",
    ],
)
def test_unusual_addresses_are_shown_named_and_stored_without_secrets(url):
    for text in (
        redact(url),
        canonical_url(url),
        redact_for_disk(url),
        str(Origin(url)),
        redact_value([url])[0],
    ):
        assert hides(text), text
    assert "host/a.tar" in redact(url)
    assert "host/a.tar" in canonical_url(url)
    assert canonical_url(canonical_url(url)) == canonical_url(url)


def test_control_characters_in_a_url_are_escaped_in_messages_and_kept_in_names():
    url = "s3://b/a\x1b[31m\n.tar"
    assert redact(url) == "s3://b/a\\x1b[31m\\n.tar"
    assert canonical_url(url) == url
    assert "\x1b" not in str(ShardError("no", origin=Origin(url)))
