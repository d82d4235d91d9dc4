"""Names of WebDataset that are left out on purpose, and why.

Such a name can be imported, so that a program which merely mentions it still starts; using it is
a :class:`~penstock.errors.PipelineError` that says why it is not there and what to use instead.
"""

from __future__ import annotations

from typing import Any, NoReturn

from penstock.errors import PipelineError

OPENED = "URLs are opened without a helper program; use gopen(url) or open_url(url)"
CACHE = "the cache for shards from a network is an argument: WebDataset(urls, cache_dir=folder)"
SPECS = "dataset specs (YAML, JSON) are not read: list the shards instead"
INTERNAL = "it served WebDataset's own code"

LEFT_OUT: dict[str, str] = {
    "CacheStream": CACHE,
    "FileCache": CACHE,
    "MSSource": SPECS,
    "MultiShardSample": SPECS,
    "Pipeline": "it was a base class of version 0.1; build a DataPipeline",
    "SampleIterator": "it was a base class of version 0.1; build a DataPipeline",
    "add_length_method": INTERNAL + "; use the method with_length",
    "bench": "it was a command; use 'penstock --help'",
    "cache_shards": CACHE,
    "checks": INTERNAL,
    "construct_dataset": SPECS,
    "deprecated": INTERNAL,
    "downloader": OPENED,
    "dsspecs": SPECS,
    "gopen_ais": OPENED,
    "gopen_curl": OPENED,
    "gopen_gsutil": OPENED,
    "gopen_hf": OPENED,
    "gopen_htgs": OPENED + ", with gs:// for htgs://",
    "multi": "its loaders need ZeroMQ; use WebLoader",
    "obsolete": INTERNAL,
    "safe_eval": "text is not run as code here; ast.literal_eval reads plain values",
    "set_options": "streams have no options to set; give them to gopen, for example ignore_status",
    "typecheck": INTERNAL,
}
"""Name → why it is left out. A test holds this list against the names of WebDataset."""


class LeftOut:
    """Stands in for a name that is left out; calling it, or asking it for anything, says why.

    >>> LeftOut("gopen_hf")
    LeftOut('gopen_hf')
    >>> LeftOut("multi")()
    Traceback (most recent call last):
    penstock.errors.PipelineError: 'multi' is left out of penstock: its loaders need ZeroMQ; ...
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise PipelineError(f"{self.name!r} is left out of penstock: {LEFT_OUT[self.name]}")

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):  # Python itself asks for these, of any object
            raise AttributeError(attribute)
        self()

    def __repr__(self) -> str:
        return f"LeftOut({self.name!r})"
