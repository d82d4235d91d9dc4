"""URLs changed on the way to the opener by the variables ``WDS_REWRITE`` and ``GOPEN_REWRITE``."""

from __future__ import annotations

import re

from penstock import env
from penstock.errors import UnsafeError, UrlError


def rewrite_url(url: str) -> str:
    """The URL after the rules of ``WDS_REWRITE``, then of ``GOPEN_REWRITE``.

    A variable holds ``regex=replacement;regex=replacement``. A regex must match at the URL's
    beginning; of each variable's rules, the first that changes the URL is the only one used. A
    rule that cannot be understood is a :class:`~penstock.errors.UrlError`; any rule at all under
    ``WDS_SECURE`` is an :class:`~penstock.errors.UnsafeError`.

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
                f"WDS_SECURE forbids rewriting URLs, but {variable} is set: unset one of the two"
            )
        url = _rewrite(url, rules, variable)
    return url


def _rewrite(url: str, rules: str, variable: str) -> str:
    for rule in filter(None, rules.split(";")):
        regex, equals, replacement = rule.partition("=")
        if not equals:
            raise UrlError(f"{variable} must be regex=replacement;..., but {rule!r} has no '='")
        try:
            changed = re.sub("^" + regex, replacement, url)
        except (re.error, IndexError) as exn:
            raise UrlError(f"{variable}: the rule {rule!r} cannot be used: {exn}") from exn
        if changed != url:
            return changed
    return url
