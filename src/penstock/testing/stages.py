"""The contract of a stage, as a suite for pytest.

Make a subclass whose name begins with ``Test``, and define how to make the stage and its input::

    class TestUpper(StageContract):
        def make_stage(self):
            return upper("txt")

        items = ({"__key__": "a", "txt": "x"}, {"__key__": "b", "txt": "y"})
        behind = (wds.decode(),)      # stages that turn the samples of a shard into such items

A stage that starts a pipeline sets ``source = True`` and no items.
"""

from __future__ import annotations

import builtins
import copy
import io
import os
import pickle
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest

from penstock.context import Context
from penstock.errors import PenstockError
from penstock.pipeline import DataPipeline
from penstock.stages.reading.tar_samples import tarfile_to_samples
from penstock.stages.run import IterableRun, Run
from penstock.stages.sources.shard_list import SimpleShardList
from penstock.stages.stage import Stage
from penstock.testing.expect import expect

MANY = 50
"""Maximum number of items to read, for endless stages."""


class StageContract:
    """The suite; every ``test_`` method is one promise.

    Set ``empty_is_error`` if an empty source is an error, ``origins = False`` if items do not come
    from shards, ``shards = True`` if the items are shards. Override ``same`` if items do not
    compare with ``==``.
    """

    items: ClassVar[tuple[Any, ...]] = ()
    behind: ClassVar[tuple[Any, ...]] = ()
    source: ClassVar[bool] = False
    shards: ClassVar[bool] = False
    empty_is_error: ClassVar[bool] = False
    origins: ClassVar[bool] = True
    folder: Path

    @pytest.fixture(autouse=True)
    def _set_folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_stage(self) -> Stage[Any, Any]:
        """Return a new stage, equal to the previous ones. Called several times."""
        raise NotImplementedError

    def make_items(self) -> list[Any]:
        """Return new items for the stage; some stages modify their items."""
        return copy.deepcopy(list(self.items))

    def same(self, found: list[Any], wanted: list[Any]) -> bool:
        """Return whether two runs yielded the same items."""
        return found == wanted

    def given(self, stage: Stage[Any, Any], source: Any = None, **context: int) -> list[Any]:
        """Run the stage on its items and return the results."""
        run: Run[Any] | None = None
        if not self.source:
            run = IterableRun(self.make_items() if source is None else source, None, Context())
        return list(islice(stage.start(run, Context(**context)), MANY))  # type: ignore[arg-type]

    def test_it_prints_its_name(self) -> None:
        stage = self.make_stage()
        expect(repr(stage).startswith(f"{stage.name}("), f"repr() must name it: {stage!r}")
        expect(len(repr(stage)) < 1000, "repr() must stay short")

    def test_it_is_a_value(self) -> None:
        one, other = self.make_stage(), self.make_stage()
        expect(one == other, "stages with equal arguments must be equal")
        expect(hash(one) == hash(other), "equal stages must have equal hashes")
        expect(one != object(), "a stage must not equal other objects")
        expect(repr(one) == repr(other), "equal stages must have equal reprs")

    def test_it_travels_to_another_process(self) -> None:
        stage = self.make_stage()
        wanted = self.given(self.make_stage())
        for twin in (pickle.loads(pickle.dumps(stage)), copy.deepcopy(stage)):
            expect(twin == stage, f"{twin!r} must equal {stage!r}")
            expect(self.same(self.given(twin), wanted), "a copy must yield the same items")
        expect(pickle.loads(pickle.dumps(stage)) == stage, "it must be picklable after a run")

    def test_making_it_opens_nothing(self) -> None:
        with refuse_opening():  # files, connections, processes
            self.make_stage()

    def test_it_runs_on_any_iterable(self) -> None:
        wanted = self.given(self.make_stage())
        if self.source:
            again = list(islice(iter(self.make_stage()), MANY))  # type: ignore[call-overload]
            expect(self.same(again, wanted), "a source must be iterable without a pipeline")
            return
        for kind in (list, iter, lambda items: (item for item in items)):
            found = list(islice(self.make_stage()(kind(self.make_items())), MANY))
            expect(self.same(found, wanted), "a list and an iterator must yield the same items")

    def test_nothing_gives_nothing_or_is_told(self) -> None:
        if self.source:
            return
        if self.empty_is_error:
            with pytest.raises(PenstockError):
                self.given(self.make_stage(), [])
        else:
            expect(self.given(self.make_stage(), []) == [], "an empty source must yield nothing")

    def test_an_error_of_its_source_passes_through(self) -> None:
        if self.source:
            return
        error = ArithmeticError("of the source")

        def failing() -> Iterator[Any]:
            yield from self.make_items()[:1]
            raise error

        with pytest.raises(ArithmeticError) as caught:
            self.given(self.make_stage(), failing())
        expect(caught.value is error, "an error of the source must be raised unchanged")

    def test_what_it_gives_depends_only_on_the_context(self) -> None:
        stage = self.make_stage()
        first = self.given(stage, epoch=3, seed=5)
        self.given(stage, epoch=4, seed=5)
        expect(
            self.same(self.given(stage, epoch=3, seed=5), first),
            "an epoch must have the same items each time",
        )
        other = self.given(self.make_stage(), epoch=3, seed=5)
        expect(self.same(other, first), "an epoch of an equal stage must have the same items")

    def test_every_item_has_a_ticket_and_an_origin(self) -> None:
        if not self.origins:
            return
        run = self.over_shards().start(Context())
        count = 0
        for _ in islice(run, MANY):
            count += 1
            expect(run.ticket is not None, "an item must have a ticket")
            origin = run.origin(run.ticket)
            expect(origin is not None and bool(origin.url), f"no origin for {run.ticket!r}")
        expect(count > 0, "it must yield something over shards")

    def test_its_ticket_is_known_before_the_first_item_and_after_the_last(self) -> None:
        if not self.origins:
            return
        run = self.over_shards().start(Context())
        before = run.origins(run.ticket)
        expect(before == [], f"there must be no origins before the first item: {before}")
        for _ in islice(run, MANY):
            pass
        run.origins(run.ticket)  # must not fail: a generator may yield after its source has ended

    def test_it_keeps_the_number_of_items_where_it_says_so(self) -> None:
        if self.source or not self.make_stage().keeps_count:
            return
        found, wanted = len(self.given(self.make_stage())), len(self.make_items())
        expect(found == wanted, f"keeps_count is True, but {wanted} items became {found}")

    def over_shards(self) -> DataPipeline[Any]:
        """Return a pipeline of shards, the stages that make the items, and the stage."""
        if self.source:
            return DataPipeline(self.make_stage())
        urls = SimpleShardList([write_shard(self.folder / f"{n}.tar", n) for n in range(2)])
        if self.shards:
            return DataPipeline(urls, self.make_stage())
        return DataPipeline(urls, tarfile_to_samples(), *self.behind, self.make_stage())


def write_shard(path: Path, number: int = 0) -> str:
    """Write a small shard: samples with the fields ``cls``, ``txt`` and ``json``."""
    with tarfile.open(path, "w") as tar:
        for n in range(5 * number, 5 * number + 5):
            for field, data in (("cls", b"%d" % n), ("txt", b"text"), ("json", b"[1]")):
                member = tarfile.TarInfo(f"sample{n}.{field}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return str(path)


@contextmanager
def refuse_opening() -> Iterator[None]:
    """Raise an AssertionError if a file, connection or process is opened inside."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"creating a stage must open nothing, but it opened {args}")

    with ExitStack() as stack:
        for module, name in (
            (builtins, "open"),
            (os, "open"),
            (os, "listdir"),
            (os, "scandir"),
            (subprocess, "Popen"),
            (socket, "socket"),
        ):
            stack.enter_context(mock.patch.object(module, name, refuse))
        yield
