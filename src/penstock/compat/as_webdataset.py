"""Serves programs that import ``webdataset``: they get penstock's modules under that name."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.metadata
import sys
import types
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import penstock
from penstock import compat
from penstock.errors import PipelineError

NAME = "webdataset"
LOADED = (
    *("autodecode", "cache", "compat", "extradatasets", "filters", "gopen", "handlers", "mix"),
    *("pipeline", "shardlists", "tariterators", "tenbin", "utils", "writer"),
)
"""The submodules that ``import webdataset`` imports. ``pytorch`` is left out: it imports torch."""


def install_as_webdataset() -> None:
    """Make ``import webdataset`` return penstock's modules in this process.

    Call it before anything imports WebDataset, which need not be installed; if it was imported
    already, a :class:`~penstock.errors.PipelineError` says so. ``webdataset.filters`` and the other
    submodules are the same objects as ``penstock.filters`` and so on. ``webdataset.__version__``
    and ``importlib.metadata.version("webdataset")`` are 1.0.2, the version that penstock follows.
    Forked processes inherit it; spawned ones must call it, too. Calling it twice does nothing.

    >>> install_as_webdataset()
    >>> import webdataset
    >>> webdataset.__version__, webdataset.filters is penstock.filters
    ('1.0.2', True)
    """
    there = sys.modules.get(NAME)
    if isinstance(there, WebDatasetModule):
        return
    imported = [name for name in sys.modules if name.partition(".")[0] == NAME]
    if imported:
        where = getattr(there, "__file__", None) or "another module"
        raise PipelineError(
            f"install_as_webdataset() comes before the first import of webdataset, but {where} was "
            "imported as webdataset already: call it at the top of the program, before other "
            "imports"
        )
    sys.meta_path.insert(0, WebDatasetFinder())
    importlib.import_module(NAME)


class WebDatasetModule(types.ModuleType):
    """The module ``webdataset``: the names of penstock, and the version of WebDataset."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":  # those of penstock's own package
            raise AttributeError(f"module {NAME!r} has no attribute {name!r}")
        return getattr(penstock, name)

    def __dir__(self) -> list[str]:
        return [*dir(penstock), *super().__dir__()]


class WebDatasetFinder(importlib.metadata.DistributionFinder):
    """Finds ``webdataset``, its submodules, and its entry among the installed packages."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: Any = None
    ) -> ModuleSpec | None:
        top, _, inside = fullname.partition(".")
        if top != NAME or (inside and inside.partition(".")[0] not in compat.SUBMODULES):
            return None
        return ModuleSpec(fullname, WebDatasetLoader(inside), is_package=not inside)

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context | None = None
    ) -> Iterator[importlib.metadata.Distribution]:
        name = getattr(context, "name", None)
        if name is None or name.lower() == NAME:
            yield WebDatasetDistribution()


class WebDatasetLoader(importlib.abc.Loader):
    """Returns the module of penstock for one of ``webdataset``."""

    def __init__(self, inside: str) -> None:
        self.inside = inside
        self.own: Any = None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        if not self.inside:
            module: types.ModuleType = WebDatasetModule(NAME, penstock.__doc__)
            module.__file__ = penstock.__file__
            module.__dict__["__version__"] = compat.__version__
            return module
        module = importlib.import_module(f"penstock.{self.inside}")
        self.own = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        if self.inside:
            module.__spec__ = self.own  # the import system has set that of webdataset
            return
        for name in LOADED:  # programs look in sys.modules for them
            importlib.import_module(f"{NAME}.{name}")


class WebDatasetDistribution(importlib.metadata.Distribution):
    """What ``importlib.metadata`` knows about WebDataset."""

    def read_text(self, filename: str) -> str | None:
        if filename not in ("METADATA", "PKG-INFO"):
            return None
        return f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {compat.__version__}\n"

    def locate_file(self, path: Any) -> Any:
        return Path(str(penstock.__file__)).parent / path
