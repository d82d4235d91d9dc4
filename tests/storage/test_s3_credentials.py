"""Where keys, regions and endpoints come from, as AWS tools find them."""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback

import pytest
from servers_s3 import error_page, serving

from penstock.errors import MissingPackage, StorageError
from penstock.storage import open_url
from penstock.storage.auth.aws_credentials import find_account, find_server
from penstock.storage.auth.named_keys import use_keys
from penstock.storage.objects.s3 import S3Store

pytestmark = pytest.mark.usefixtures("no_keys")

HUSH = "hush-hush-secret"


@pytest.fixture
def aws_files(tmp_path, monkeypatch):
    """Writes the shared files: aws_files(config=…, credentials=…)."""

    def write(config="", credentials=""):
        for variable, text in (
            ("AWS_CONFIG_FILE", config),
            ("AWS_SHARED_CREDENTIALS_FILE", credentials),
        ):
            path = tmp_path / variable
            path.write_text(text)
            monkeypatch.setenv(variable, str(path))

    return write


def found(profile=None):
    return find_account(None, profile, False).credentials()


def test_the_environment_comes_first(aws_files, monkeypatch):
    aws_files(credentials="[default]\naws_access_key_id = F\naws_secret_access_key = x\n")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "E")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", HUSH)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "T")
    who = found()
    assert (who.access_key, who.secret.reveal(), who.token.reveal()) == ("E", HUSH, "T")
    request = S3Store("s3://b/k").request("GET", "s3://b/k")
    assert request.headers["x-amz-security-token"] == "T"


def test_profiles_of_both_files_are_read(aws_files, monkeypatch):
    aws_files(
        config="[profile a]\nregion = eu-west-1\naws_access_key_id = C\n"
        "aws_secret_access_key = y\n",
        credentials="[b]\naws_access_key_id = B\naws_secret_access_key = x\n",
    )
    assert found("a").access_key == "C"
    assert found("b").access_key == "B"
    monkeypatch.setenv("AWS_PROFILE", "b")
    assert found().access_key == "B"
    assert find_server(None, "a").region == "eu-west-1"


def test_a_profile_that_is_not_there_is_an_error_with_its_name(aws_files):
    aws_files(config="[default]\nregion = x\n")
    with pytest.raises(StorageError, match="'nobody'"):
        found("nobody")


def test_a_name_in_the_url_or_the_argument_is_a_key_or_a_profile(aws_files):
    aws_files(credentials="[b]\naws_access_key_id = B\naws_secret_access_key = x\n")
    use_keys({"a": {"access_key": "A", "secret": HUSH}})
    for url, options, access in (
        ("s3://a@bucket/k", {}, "A"),
        ("s3://b@bucket/k", {}, "B"),
        ("s3://bucket/k", {"key": "a"}, "A"),
        ("s3://bucket/k", {"profile": "b"}, "B"),
    ):
        request = S3Store(url, **options).request("GET", url)
        assert f"Credential={access}/" in request.headers["Authorization"]
        assert request.url == "https://bucket.s3.us-east-1.amazonaws.com/k"


def test_a_damaged_file_is_an_error_that_quotes_nothing(aws_files):
    aws_files(credentials=f"[default]\n{HUSH}\n")
    with pytest.raises(StorageError, match="damaged") as caught:
        found()
    assert HUSH not in "".join(traceback.format_exception(caught.value)) + str(
        caught.value.__context__
    )


def test_endpoints_come_in_the_order_of_aws_tools(aws_files, monkeypatch):
    aws_files(
        config="[default]\nendpoint_url = http://profile\nservices = mine\n"
        "[services mine]\ns3 =\n  endpoint_url = http://service\n[profile plain]\n"
        "endpoint_url = http://plain\ns3 =\n  addressing_style = virtual\n"
    )
    assert find_server(None, None).endpoint == "http://service"
    assert find_server(None, "plain").endpoint == "http://plain"
    assert find_server(None, "plain").path_style is False
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://variable")
    assert find_server(None, None).endpoint == "http://service"
    assert find_server(None, "plain").endpoint == "http://variable"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://variable-s3")
    assert find_server(None, None).endpoint == "http://variable-s3"
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert find_server(None, None).endpoint is None


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({}, "https://b.s3.us-east-1.amazonaws.com/k%20%C3%BC"),
        ({"region": "cn-north-1"}, "https://b.s3.cn-north-1.amazonaws.com.cn/k%20%C3%BC"),
        ({"path_style": True}, "https://s3.us-east-1.amazonaws.com/b/k%20%C3%BC"),
        ({"endpoint": "http://h:1/base/"}, "http://h:1/base/b/k%20%C3%BC"),
        ({"endpoint": "https://h", "path_style": False}, "https://b.h/k%20%C3%BC"),
    ],
)
def test_buckets_are_addressed_by_host_at_amazon_and_by_path_elsewhere(options, url):
    assert S3Store("s3://b/x", **options).request("GET", "s3://b/k ü").url == url


def test_a_bucket_with_dots_is_addressed_by_path():
    url = S3Store("s3://a.b/k").request("GET", "s3://a.b/k").url
    assert url == "https://s3.us-east-1.amazonaws.com/a.b/k"


def test_without_keys_or_as_asked_requests_are_not_signed(monkeypatch):
    monkeypatch.setitem(sys.modules, "botocore", None)
    assert "Authorization" not in S3Store("s3://b/k").request("GET", "s3://b/k").headers
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "E")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", HUSH)
    assert "Authorization" in S3Store("s3://b/k").request("GET", "s3://b/k").headers
    unsigned = S3Store("s3://b/k", anonymous=True, requester_pays=True).request("GET", "s3://b/k")
    assert dict(unsigned.headers) == {"x-amz-request-payer": "requester"}


def test_a_role_without_botocore_names_the_extra(aws_files, monkeypatch):
    aws_files(config="[default]\nrole_arn = arn:x\nsource_profile = b\n")
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(MissingPackage, match=r"pip install .*\[s3\]"):
        found()


def test_a_program_gives_keys_and_is_asked_again_before_they_run_out(aws_files, tmp_path):
    script = tmp_path / "keys.py"
    script.write_text(
        "import json, pathlib, datetime as d\n"
        f"count = pathlib.Path({str(tmp_path / 'count')!r})\n"
        "n = int(count.read_text()) + 1 if count.exists() else 1\n"
        "count.write_text(str(n))\n"
        "end = d.datetime.now(d.UTC) + d.timedelta(seconds=30 if n == 1 else 3600)\n"
        f"print(json.dumps(dict(Version=1, AccessKeyId=f'K{{n}}', SecretAccessKey={HUSH!r},"
        "Expiration=end.strftime('%Y-%m-%dT%H:%M:%SZ'))))\n"
    )
    aws_files(config=f"[default]\ncredential_process = {sys.executable} {script}\n")
    who = find_account(None, None, False)
    assert [who.credentials().access_key for _ in range(3)] == ["K1", "K2", "K2"]


def test_a_program_that_fails_is_an_error_that_quotes_nothing(aws_files):
    aws_files(config=f"[default]\ncredential_process = sh -c 'echo {HUSH}; echo {HUSH} >&2'\n")
    with pytest.raises(StorageError, match="credential_process") as caught:
        found()
    assert HUSH not in str(caught.value)


ROLE = {
    "Code": "Success",
    "AccessKeyId": "ROLE",
    "SecretAccessKey": HUSH,
    "Token": "T",
    "Expiration": "2099-01-01T00:00:00Z",
}


def test_a_container_role_is_asked_for_through_botocore(monkeypatch):
    pytest.importorskip("botocore")
    with serving(lambda _: (200, {}, json.dumps(ROLE).encode())) as url:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url + "/role")
        who = found()
    assert (who.access_key, who.token.reveal()) == ("ROLE", "T")


def test_an_instance_role_is_asked_for_through_botocore(monkeypatch):
    pytest.importorskip("botocore")

    def answer(request):
        if request.path.endswith("/token"):
            return 200, {"x-aws-ec2-metadata-token-ttl-seconds": "60"}, b"token"
        if request.path.endswith("security-credentials/"):
            return 200, {}, b"my-role"
        return 200, {}, json.dumps(ROLE).encode()

    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    with serving(answer) as url:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)
        who = found()
    assert who.access_key == "ROLE"
    assert "iam-role" in who.source


def test_keys_that_ran_out_in_mid_read_are_renewed_for_all_requests(tmp_path):
    data, old = bytes(range(256)) * 4096, threading.Event()
    secret = tmp_path / "secret"
    secret.write_text("old")
    refused = []

    def answer(request):
        begin, end = map(int, request.headers["Range"].removeprefix("bytes=").split("-"))
        signed = request.headers["Authorization"]
        if begin and not old.is_set():
            old.expired = signed.partition("Signature=")[0]
            old.set()
            secret.write_text("new")
        fresh = old.is_set() and secret_of(request) == "new"
        if begin and not fresh:
            refused.append(begin)
            return 400, {}, error_page("ExpiredToken")
        end = min(end, len(data) - 1)
        content = f"bytes {begin}-{end}/{len(data)}"
        return 206, {"Content-Range": content, "ETag": '"x"'}, data[begin : end + 1]

    def secret_of(request):
        from datetime import UTC, datetime

        from penstock.storage.auth.aws_sigv4 import Credentials, Secret, sign

        then = datetime.strptime(request.headers["x-amz-date"], "%Y%m%dT%H%M%SZ")
        url = f"http://{request.headers['Host']}{request.path}"
        for text in ("old", "new"):
            who = Credentials("AK", Secret(text))
            mine = sign("GET", url, {}, None, who, region="us-east-1", now=then.replace(tzinfo=UTC))
            if mine["Authorization"] == request.headers["Authorization"]:
                return text
        return None

    with serving(answer) as endpoint:
        use_keys({"a": {"access_key": "AK", "secret_file": str(secret), "endpoint": endpoint}})
        options = {"key": "a", "part_bytes": 1 << 16, "connections": 4}
        with open_url("s3://b/x.bin", **options) as stream:
            assert stream.read() == data
    assert refused


def test_keys_that_cannot_be_renewed_are_an_error_with_a_remedy():
    with serving(lambda _: (400, {}, error_page("ExpiredToken"))) as endpoint:
        use_keys({"a": {"access_key": "AK", "secret": HUSH, "endpoint": endpoint}})
        began = time.monotonic()
        with pytest.raises(StorageError, match="have run out"), open_url("s3://a@b/x") as stream:
            stream.read()
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("kind", ["region", "clock"])
def test_a_wrong_region_or_clock_is_set_right_by_the_servers_answer(kind):
    seen = []

    def answer(request):
        seen.append(request.headers["Authorization"])
        if len(seen) > 1:
            return 206, {"Content-Range": "bytes 0-2/3"}, b"abc"
        if kind == "region":
            page = error_page("AuthorizationHeaderMalformed", "<Region>eu-west-3</Region>")
            return 400, {}, page
        page = error_page("RequestTimeTooSkewed", "<ServerTime>2030-01-02T00:00:00Z</ServerTime>")
        return 403, {}, page

    with serving(answer) as endpoint:
        use_keys({"a": {"access_key": "AK", "secret": HUSH, "endpoint": endpoint}})
        with open_url("s3://a@b/x") as stream:
            assert stream.read() == b"abc"
    assert ("eu-west-3" if kind == "region" else "20300102") in seen[1]
