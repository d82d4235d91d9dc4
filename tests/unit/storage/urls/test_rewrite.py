from __future__ import annotations

import pytest

from penstock.errors import UnsafeError, UrlError
from penstock.storage.urls import rewrite_url


@pytest.fixture(autouse=True)
def _no_rules(monkeypatch):
    for name in ("WDS_REWRITE", "GOPEN_REWRITE", "WDS_SECURE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("variable", ["WDS_REWRITE", "GOPEN_REWRITE"])
def test_the_first_rule_that_changes_the_url_is_used(monkeypatch, variable):
    monkeypatch.setenv(variable, "x://=y://;gs://(\\w+)/=/mnt/\\1/;gs://=never")
    assert rewrite_url("gs://bucket/a.tar") == "/mnt/bucket/a.tar"


def test_a_rule_matches_only_at_the_beginning(monkeypatch):
    monkeypatch.setenv("WDS_REWRITE", "bucket=other")
    assert rewrite_url("gs://bucket/a.tar") == "gs://bucket/a.tar"


def test_the_first_equals_sign_splits_a_rule(monkeypatch):
    monkeypatch.setenv("WDS_REWRITE", "gs://=https://host/?path=")
    assert rewrite_url("gs://a") == "https://host/?path=a"


def test_both_variables_apply_and_wds_rewrite_is_first(monkeypatch):
    monkeypatch.setenv("WDS_REWRITE", "a=b")
    monkeypatch.setenv("GOPEN_REWRITE", "b=c;a=wrong")
    assert rewrite_url("a.tar") == "c.tar"


@pytest.mark.parametrize("rules", ["no-equals-sign", "(=x", "a=\\9", "a=\\g<name>"])
def test_a_rule_that_cannot_be_understood_is_an_error_that_names_it(monkeypatch, rules):
    monkeypatch.setenv("GOPEN_REWRITE", rules)
    with pytest.raises(UrlError, match="GOPEN_REWRITE"):
        rewrite_url("a.tar")


def test_rewriting_is_refused_when_secure(monkeypatch):
    monkeypatch.setenv("WDS_SECURE", "1")
    assert rewrite_url("a") == "a"
    monkeypatch.setenv("WDS_REWRITE", "a=b")
    with pytest.raises(UnsafeError, match="WDS_SECURE"):
        rewrite_url("a")
