"""Rewrite URLs by the variables ``WDS_REWRITE`` and ``GOPEN_REWRITE`` before they are opened."""

from __future__ import annotations

import re

from penstock import env
from penstock.errors import UnsafeError, UrlError


def rewrite_url(url: str) -> str:
    """Apply the rules in ``WDS_REWRITE``, then those in ``GOPEN_REWRITE``, and return the URL.

    A variable contains ``regex=replacement;regex=replacement``. A regex must match at the URL's
    beginning. Of each variable, only the first rule that changes the URL is applied. An invalid
    rule raises a :class:`~penstock.errors.UrlError`; under ``WDS_SECURE``, any rule raises an
    :class:`~penstock.errors.UnsafeError`.

    >>> import os; os.environ["WDS_REWRITE"] = "s3://bucket/=/mnt/copy/"
    >>> rewrite_url("s3://bucket/train-0.tar")
    '/mnt/copy/train-0.tar'
    >>> del os.environ["WDS_REWRITE"]
    """
    for variable in ("WDS_REWRITE", "GOPEN_REWRITE"):
        rules = env.text(variable)
        if rules is None:
            continue
        if env.flag("WDS_SECURE"):
            raise UnsafeError(
                "rewrite_url: unsafe_gopen is False, cannot rewrite URLs using environment"
                f" variables: WDS_SECURE and {variable} are both set; unset one of the two"
            )
        url = _rewrite(url, rules, variable)
    return url


def _rewrite(url: str, rules: str, variable: str) -> str:
    for number, rule in enumerate(filter(None, rules.split(";")), 1):
        regex, equals, replacement = rule.partition("=")
        if not equals:
            raise UrlError(
                f"{variable} must be regex=replacement;..., but rule {number} has no '='"
            )
        try:
            changed = re.sub("^" + regex, replacement, url)
        except (re.error, IndexError) as exn:
            raise UrlError(f"{variable}: rule {number} cannot be used: {exn}") from exn
        if changed != url:
            return changed
    return url
