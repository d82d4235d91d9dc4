"""S3 servers that answer oddly: a listing or an upload is right, or it is an error."""

from __future__ import annotations

import re

import pytest
from servers_s3 import error_page, serving

from penstock.errors import PipelineError, StorageError, UrlError
from penstock.storage import open_url
from penstock.storage.auth.named_keys import use_keys
from penstock.storage.client.retry_policy import RetryPolicy
from penstock.storage.objects.s3 import S3Store

pytestmark = pytest.mark.usefixtures("no_keys")

PART = 5 << 20
QUICK = RetryPolicy(retries=2, backoff_s=0.01)


class Uploads:
    """A server that takes uploads in parts; ``odd`` may answer in its place."""

    def __init__(self, odd):
        self.odd, self.seen, self.objects, self.parts = odd, [], {}, {}

    def __call__(self, request):
        step = self.step(request)
        self.seen.append(step)
        return self.odd(step, self.seen.count(step)) or self.answer(step, request)

    def step(self, request):
        query = request.path.partition("?")[2]
        if "partNumber" in query:
            return "part " + re.search(r"partNumber=(\d+)", query)[1]
        if request.command == "POST":
            return "complete" if "uploadId" in query else "begin"
        return {"DELETE": "abort", "GET": "list", "PUT": "put", "HEAD": "head"}[request.command]

    def answer(self, step, request):
        if step == "begin":
            page = "<InitiateMultipartUploadResult><UploadId>u1</UploadId></{}>"
            return 200, {}, page.format("InitiateMultipartUploadResult").encode()
        if step.startswith("part"):
            self.parts[step] = request.body
            return 200, {"ETag": f'"{step}"'}, b""
        if step == "complete":
            order = re.findall(r"<ETag>\"?(part \d+)", request.body.decode())
            self.objects["x"] = b"".join(self.parts[name] for name in order)
            return 200, {}, b"  <CompleteMultipartUploadResult/>"
        if step == "list":
            return 200, {}, b"<ListMultipartUploadsResult/>"
        return 204 if step == "abort" else 200, {}, b""


def write(odd, size=2 * PART + 7):
    server = Uploads(odd)
    with serving(server) as endpoint:
        use_keys({"a": {"access_key": "AK", "secret": "sekrit", "endpoint": endpoint}})
        data = bytes(range(256)) * (size // 256 + 1)
        try:
            with open_url("s3://a@b/x", "wb", part_bytes=PART, patience=QUICK, uploads=1) as out:
                out.write(data[:size])
        except StorageError as exn:
            return server, exn, data[:size]
    return server, None, data[:size]


def test_a_busy_server_gets_each_step_again():
    def busy(step, count):
        return (503, {}, error_page("SlowDown")) if count == 1 and step != "abort" else None

    server, error, data = write(busy)
    assert error is None
    assert server.objects["x"] == data
    assert "abort" not in server.seen


@pytest.mark.parametrize(
    ("step", "answer"),
    [
        ("complete", (200, {}, error_page("InternalError"))),
        ("complete", (200, {}, b"")),
        ("complete", (200, {}, b"<html>welcome</html>")),
        ("complete", (400, {}, error_page("InvalidPart"))),
        ("part 2", (200, {}, b"")),
        ("part 1", (403, {}, error_page("AccessDenied"))),
        ("part 3", (500, {}, b"")),
    ],
)
def test_a_step_that_was_not_really_done_is_an_error_and_all_is_taken_back(step, answer):
    server, error, _ = write(lambda now, _: answer if now == step else None)
    assert error is not None
    assert "s3://" in str(error)
    assert server.seen[-1] == "abort"
    assert not server.objects


@pytest.mark.parametrize(
    "answer", [(200, {}, b"<html>"), (403, {}, error_page("AccessDenied")), (501, {}, b"")]
)
def test_an_upload_that_cannot_begin_is_an_error(answer):
    server, error, _ = write(lambda now, _: answer if now == "begin" else None)
    assert error is not None
    assert server.seen[-1] == "begin"


@pytest.mark.parametrize("answer", [(403, {}, error_page("AccessDenied")), (501, {}, b"")])
def test_one_who_may_not_list_uploads_may_still_write(answer):
    server, error, data = write(lambda now, _: answer if now == "list" else None)
    assert error is None
    assert server.objects["x"] == data


def test_a_small_object_is_one_request():
    server, error, _ = write(lambda *_: None, size=1000)
    assert error is None
    assert server.seen == ["put"]


@pytest.mark.parametrize(
    "page",
    [
        b"<html>welcome</html>",
        b"",
        b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        b"<ListBucketResult><IsTruncated>true</IsTruncated>"
        b"<NextContinuationToken>same</NextContinuationToken></ListBucketResult>",
    ],
)
def test_a_list_that_is_none_or_has_no_end_is_an_error(page):
    with serving(lambda _: (200, {}, page)) as endpoint:
        store = S3Store("s3://b/", endpoint=endpoint, anonymous=True)
        with pytest.raises(StorageError, match="server"):
            list(store.list("s3://b/"))


def test_arguments_that_cannot_work_are_refused():
    with pytest.raises(PipelineError, match="5 MiB"):
        open_url("s3://b/x", "wb", part_bytes=1000)
    with pytest.raises(PipelineError, match="http://HOST"):
        S3Store("s3://b/x", endpoint="localhost:1").request("GET", "s3://b/x")
    with pytest.raises(UrlError, match=r"'\.\.'"):
        open_url("s3://b/a/../../other/x.tar", anonymous=True).read(1)
    for mode in ("rb", "wb"):
        with pytest.raises(StorageError, match="a bucket, not an object"):
            open_url("s3://b/", mode)
