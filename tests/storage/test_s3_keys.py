"""Named keys: which one a URL gets, where secrets come from, and where they never appear."""

from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
import traceback

import pytest

import penstock as wds
from penstock.errors import PipelineError, StorageError, UrlError
from penstock.storage import open_url
from penstock.storage.auth.named_keys import find_key, named_keys, use_keys
from penstock.storage.objects.s3 import S3Store

pytestmark = pytest.mark.usefixtures("no_keys")

HUSH = "hush-hush-secret"
NOWHERE = "http://127.0.0.1:9"  # a port that nobody listens on


def table(**more):
    return {"buckets": ["shards"], "access_key": "AK", "secret": HUSH, **more}


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://shards/a.tar", "exact"),
        ("s3://shards-2/a.tar", "star"),
        ("s3://shards/private/a.tar", "deep"),
        ("s3://shards/private", "exact"),
        ("s3://other/a.tar", "rest"),
        ("gs://shards/a.tar", "google"),
    ],
)
def test_the_closest_pattern_wins(url, name):
    use_keys(
        {
            "rest": table(buckets=["s3://*"]),
            "star": table(buckets=["shards*"]),
            "deep": table(buckets=["s3://shards/private/"]),
            "exact": table(buckets="s3://shards/"),
            "google": table(buckets=["gs://shards"]),
        }
    )
    assert find_key(url).name == name


def test_a_bucket_that_no_pattern_fits_has_no_key():
    use_keys({"a": table()})
    assert find_key("s3://elsewhere/x.tar") is None


def test_toml_and_yaml_say_the_same(tmp_path):
    toml, yaml = tmp_path / "k.toml", tmp_path / "k.yaml"
    toml.write_text(f'[team-a]\nbuckets = ["b*"]\naccess_key = "AK"\nsecret = "{HUSH}"\n')
    yaml.write_text(f"keys: {{team-a: {{buckets: [b*], access_key: AK, secret: {HUSH}}}}}\n")
    found = []
    for path in (toml, yaml):
        path.chmod(0o600)
        use_keys(path)
        found.append(named_keys())
    assert found[0] == found[1]
    assert found[0]["team-a"].credentials().secret.reveal() == HUSH


def test_the_file_in_the_configuration_folder_is_found(tmp_path):
    (tmp_path / "config" / "penstock").mkdir(parents=True)
    (tmp_path / "config" / "penstock" / "keys.toml").write_text('[a]\nbuckets = ["b"]\n')
    assert list(named_keys()) == ["a"]


def test_a_changed_file_is_read_again(tmp_path):
    path = tmp_path / "k.toml"
    path.write_text('[a]\nbuckets = ["b"]\n')
    use_keys(path)
    assert list(named_keys()) == ["a"]
    path.write_text('[c]\nbuckets = ["b"]\n')
    os.utime(path, ns=(1, 1))
    assert list(named_keys()) == ["c"]


def test_a_file_with_secrets_that_others_may_read_is_told(tmp_path):
    path = tmp_path / "k.toml"
    path.write_text(f'[a]\nbuckets = ["b"]\naccess_key = "AK"\nsecret = "{HUSH}"\n')
    path.chmod(0o644)
    with pytest.warns(UserWarning, match="chmod 600"):
        use_keys(path)


def test_secrets_come_from_a_variable_a_file_or_a_command(tmp_path, monkeypatch):
    monkeypatch.setenv("TEAM_A_SECRET", HUSH)
    (tmp_path / "secret").write_text(HUSH + "\n")
    ways = [
        {"secret_env": "TEAM_A_SECRET"},
        {"secret_file": str(tmp_path / "secret")},
        {"secret_command": f"echo {HUSH}"},
        {"secret_command": ["echo", HUSH]},
    ]
    for way in ways:
        use_keys({"a": {"buckets": ["b"], "access_key": "AK", **way}})
        assert find_key("s3://b/x").credentials().secret.reveal() == HUSH


@pytest.mark.parametrize(
    "way",
    [
        {"secret_env": "NOT_SET_AT_ALL"},
        {"secret_file": "/nonexistent/file"},
        {"secret_command": f"sh -c 'echo {HUSH}; exit 3'"},
        {"secret_command": f"no-such-program {HUSH}"},
    ],
)
def test_a_secret_that_cannot_be_had_is_an_error_that_names_the_key(way):
    use_keys({"team-a": {"buckets": ["b"], "access_key": "AK", **way}})
    with pytest.raises(StorageError, match="'team-a'") as caught:
        find_key("s3://b/x").credentials()
    assert HUSH not in told(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"secret": HUSH},
        {"access_key": "AK"},
        {"access_key": "AK", "secret": HUSH, "secret_env": "X"},
        {"access_key": "AK", "secret": HUSH, "anonymous": True},
        {"acces_key": HUSH},
        {"access_key": "AK", "secret": [HUSH]},
        {"access_key": "AK", "secret": HUSH, "path_style": HUSH},
        HUSH,
    ],
)
def test_a_table_that_cannot_be_meant_is_refused_without_its_values(fields):
    with pytest.raises(PipelineError) as caught:
        use_keys({"a": fields})
    assert HUSH not in told(caught.value)


@pytest.mark.parametrize(
    ("end", "text"), [("toml", f'a = "{HUSH}\n'), ("yaml", f"a: [{HUSH}\nb: '")]
)
def test_a_damaged_file_is_an_error_that_quotes_nothing(tmp_path, end, text):
    path = tmp_path / f"k.{end}"
    path.write_text(text)
    with pytest.raises(PipelineError, match="line") as caught:
        use_keys(path)
    assert HUSH not in told(caught.value)


def test_a_missing_file_is_an_error():
    with pytest.raises(StorageError, match=r"nowhere\.toml"):
        use_keys("nowhere.toml")


def test_secrets_appear_in_no_repr_pickle_log_or_error(caplog):
    caplog.set_level(logging.DEBUG)
    use_keys({"a": table(endpoint=NOWHERE)})
    url = "s3://shards/x.tar"
    store = S3Store(url)
    request = store.request("GET", url)
    pipeline = wds.WebDataset([url], shardshuffle=False).decode()
    shown = [repr(named_keys()), repr(store), repr(request), repr(pipeline), str(store._account())]
    from penstock.storage.client.retry_policy import RetryPolicy

    with pytest.raises(StorageError) as caught:
        open_url(url, patience=RetryPolicy(retries=1, backoff_s=0.01)).read(1)
    shown += [told(caught.value), caplog.text]
    for value in (store, pipeline):
        data = pickle.dumps(value)
        shown.append(data.decode("latin-1"))
        pickle.loads(data)
    for text in shown:
        assert HUSH not in text
    with pytest.raises(PipelineError, match="not pickled"):
        pickle.dumps(named_keys())


def test_a_secret_written_into_a_url_is_refused_and_not_repeated(caplog):
    caplog.set_level(logging.DEBUG)
    url = f"s3://AK:{HUSH}@shards/x.tar"
    for act in (
        lambda: open_url(url),
        lambda: list(wds.WebDataset([url], shardshuffle=False)),
        lambda: S3Store(url),
    ):
        with pytest.raises(UrlError, match="named key") as caught:
            act()
        assert HUSH not in told(caught.value) + caplog.text


def test_what_travels_to_other_processes_holds_no_literal_secret():
    use_keys({"a": table(session_token=HUSH + "2")})
    assert HUSH not in json.dumps(dict(os.environ))
    code = "from penstock.storage.auth.named_keys import find_key; find_key('s3://shards/x').credentials()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "StorageError" in done.stderr
    assert "secret_env" in done.stderr


def test_what_a_new_process_can_look_up_itself_travels(monkeypatch):
    monkeypatch.setenv("TEAM_A_SECRET", HUSH)
    use_keys({"a": {"buckets": ["b"], "access_key": "AK", "secret_env": "TEAM_A_SECRET"}})
    code = "from penstock.storage.auth.named_keys import find_key as f; print(f('s3://b/x').credentials())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "the key 'a'" in done.stdout


def told(exn: BaseException) -> str:
    return "".join(traceback.format_exception(exn)[-1:]) + repr(exn) + str(exn.__context__)
