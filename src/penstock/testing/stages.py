"""What every stage must do, as a suite for pytest.

Make a subclass whose name begins with ``Test``, and say how to make the stage and what it takes::

    class TestUpper(StageContract):
        def make_stage(self):
            return upper("txt")

        items = ({"__key__": "a", "txt": "x"}, {"__key__": "b", "txt": "y"})
        behind = (wds.decode(),)      # what makes its items of the samples of a shard

A stage that begins a pipeline has ``source = True`` and no items.
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

MANY = 50
"""So many items of an endless stage are looked at."""


class StageContract:
    """The suite; every ``test_`` method is one promise.

    ``empty_is_error`` where nothing to work on is an error, ``origins = False`` where items come
    from no shard, ``shards = True`` where the items are shards. Override ``same`` where items do
    not compare with ``==``.
    """

    items: ClassVar[tuple[Any, ...]] = ()
    behind: ClassVar[tuple[Any, ...]] = ()
    source: ClassVar[bool] = False
    shards: ClassVar[bool] = False
    empty_is_error: ClassVar[bool] = False
    origins: ClassVar[bool] = True
    folder: Path

    @pytest.fixture(autouse=True)
    def _in_a_folder_of_its_own(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_stage(self) -> Stage[Any, Any]:
        """The stage. Called several times; equal stages must come."""
        raise NotImplementedError

    def make_items(self) -> list[Any]:
        """New items for the stage; some stages change what they get."""
        return copy.deepcopy(list(self.items))

    def same(self, found: list[Any], wanted: list[Any]) -> bool:
        """Whether two runs gave the same."""
        return found == wanted

    def given(self, stage: Stage[Any, Any], source: Any = None, **place: int) -> list[Any]:
        """What the stage gives for its items."""
        run: Run[Any] | None = None
        if not self.source:
            run = IterableRun(self.make_items() if source is None else source, None, Context())
        return list(islice(stage.start(run, Context(**place)), MANY))  # type: ignore[arg-type]

    def test_it_prints_its_name(self) -> None:
        stage = self.make_stage()
        expect(repr(stage).startswith(f"{stage.name}("), f"repr() must name it: {stage!r}")
        expect(len(repr(stage)) < 1000, "repr() must stay short")

    def test_it_is_a_value(self) -> None:
        one, other = self.make_stage(), self.make_stage()
        expect(one == other, "stages made alike must be equal")
        expect(hash(one) == hash(other), "equal stages must have equal hashes")
        expect(one != object(), "a stage equals no other thing")
        expect(repr(one) == repr(other), "equal stages must print alike")

    def test_it_travels_to_another_process(self) -> None:
        stage = self.make_stage()
        wanted = self.given(self.make_stage())
        for traveller in (pickle.loads(pickle.dumps(stage)), copy.deepcopy(stage)):
            expect(traveller == stage, f"{traveller!r} must equal {stage!r}")
            expect(self.same(self.given(traveller), wanted), "it must do the same there")
        expect(pickle.loads(pickle.dumps(stage)) == stage, "also after it was at work")

    def test_making_it_opens_nothing(self) -> None:
        with nothing_opened():
            self.make_stage()

    def test_it_runs_on_any_iterable(self) -> None:
        wanted = self.given(self.make_stage())
        if self.source:
            again = list(islice(iter(self.make_stage()), MANY))  # type: ignore[call-overload]
            expect(self.same(again, wanted), "a source can be iterated by itself")
            return
        for kind in (list, iter, lambda items: (item for item in items)):
            found = list(islice(self.make_stage()(kind(self.make_items())), MANY))
            expect(self.same(found, wanted), "it must give the same for a list and an iterator")

    def test_nothing_gives_nothing_or_is_told(self) -> None:
        if self.source:
            return
        if self.empty_is_error:
            with pytest.raises(PenstockError):
                self.given(self.make_stage(), [])
        else:
            expect(self.given(self.make_stage(), []) == [], "nothing in, nothing out")

    def test_an_error_of_its_source_passes_through(self) -> None:
        if self.source:
            return
        error = ArithmeticError("of the source")

        def failing() -> Iterator[Any]:
            yield from self.make_items()[:1]
            raise error

        with pytest.raises(ArithmeticError) as caught:
            self.given(self.make_stage(), failing())
        expect(caught.value is error, "the very error must come through")

    def test_what_it_gives_depends_only_on_the_context(self) -> None:
        stage = self.make_stage()
        first = self.given(stage, epoch=3, seed=5)
        self.given(stage, epoch=4, seed=5)
        expect(
            self.same(self.given(stage, epoch=3, seed=5), first), "the same epoch, the same items"
        )
        other = self.given(self.make_stage(), epoch=3, seed=5)
        expect(self.same(other, first), "also from a stage made anew")

    def test_every_item_has_a_ticket_and_an_origin(self) -> None:
        if not self.origins:
            return
        run = self.over_shards().start(Context())
        count = 0
        for _ in islice(run, MANY):
            count += 1
            expect(run.ticket is not None, "an item has a ticket")
            origin = run.origin(run.ticket)
            expect(origin is not None and bool(origin.url), f"no origin for {run.ticket!r}")
        expect(count > 0, "it must give something over shards")

    def over_shards(self) -> DataPipeline[Any]:
        """The stage behind what makes its items of the samples of a shard."""
        if self.source:
            return DataPipeline(self.make_stage())
        urls = SimpleShardList([write_shard(self.folder / f"{n}.tar", n) for n in range(2)])
        if self.shards:
            return DataPipeline(urls, self.make_stage())
        return DataPipeline(urls, tarfile_to_samples(), *self.behind, self.make_stage())


def write_shard(path: Path, number: int = 0) -> str:
    """A small shard: samples with the fields ``cls``, ``txt`` and ``json``."""
    with tarfile.open(path, "w") as tar:
        for n in range(5 * number, 5 * number + 5):
            for field, data in (("cls", b"%d" % n), ("txt", b"text"), ("json", b"[1]")):
                member = tarfile.TarInfo(f"sample{n}.{field}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return str(path)


@contextmanager
def nothing_opened() -> Iterator[None]:
    """Inside, opening a file, a connection or a process is an AssertionError."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"making a stage must open nothing, but this was asked for: {args}")

    with ExitStack() as stack:
        for place, name in (
            (builtins, "open"),
            (os, "open"),
            (os, "listdir"),
            (os, "scandir"),
            (subprocess, "Popen"),
            (socket, "socket"),
        ):
            stack.enter_context(mock.patch.object(place, name, refuse))
        yield


def expect(condition: bool, promise: str) -> None:
    """Raise AssertionError, with the promise that was broken."""
    if not condition:
        raise AssertionError(promise)
