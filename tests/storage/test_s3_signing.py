"""Signatures: Amazon's published examples, botocore's answers, and secrets that do not show."""

from __future__ import annotations

import datetime
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PipelineError
from penstock.storage.auth.aws_sigv4 import Credentials, Secret, query_string, quote, sign

EXAMPLE = Credentials("AKIAIOSFODNN7EXAMPLE", Secret("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"))
THEN = datetime.datetime(2013, 5, 24, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("query", "signature"),
    [
        ({"lifecycle": ""}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        (
            {"max-keys": "2", "prefix": "J"},
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ],
)
def test_the_published_examples_come_out(query, signature):
    url = "https://examplebucket.s3.amazonaws.com/?" + query_string(query)
    headers = sign("GET", url, {}, None, EXAMPLE, region="us-east-1", now=THEN)
    assert headers["Authorization"].endswith(f"Signature={signature}")


@given(
    key=st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=20),
    query=st.dictionaries(st.text("abc-", min_size=1), st.text("aä b+&=/", max_size=5), max_size=3),
    body=st.binary(max_size=50),
    token=st.sampled_from([None, "token/+=="]),
)
def test_botocore_signs_the_same(key, query, body, token):
    auth = pytest.importorskip("botocore.auth")
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials as Theirs

    url = f"http://127.0.0.1:8333/shards/{quote(key, '/')}"
    url += "?" + query_string(query) if query else ""
    ours = Credentials("AK", Secret("sekrit"), Secret(token) if token else None)
    headers = sign("PUT", url, {}, body, ours, region="eu-west-1")
    request = AWSRequest("PUT", url, headers={}, data=body)
    for name in ("x-amz-date", "x-amz-content-sha256", "x-amz-security-token"):
        if name in headers:
            request.headers[name] = headers[name]
    signer = auth.S3SigV4Auth(Theirs("AK", "sekrit", token), "s3", "eu-west-1")
    request.context["timestamp"] = headers["x-amz-date"]
    text = signer.string_to_sign(request, signer.canonical_request(request))
    assert headers["Authorization"].endswith(signer.signature(text, request))


def test_a_secret_shows_itself_nowhere():
    who = Credentials("AKID", Secret("hush"), Secret("token-hush"), source="a test")
    for shown in (repr(who), str(who), f"{who.secret!r} {who.secret}", repr(vars), f"{[who]}"):
        assert "hush" not in shown
        assert "AKID" not in shown
    with pytest.raises(PipelineError, match="not pickled"):
        pickle.dumps(who)
