"""Every stage keeps the same promises."""

from __future__ import annotations

import importlib
import io
import json
import pkgutil
from typing import ClassVar

import cbor2
import msgpack
import numpy as np
import pytest

import penstock as wds
import penstock.batches
import penstock.stages
from penstock.context import Context
from penstock.datasets.map_samples import get_items
from penstock.documents import documents
from penstock.errors import PipelineError
from penstock.stages.cache_files import SampleFileCache
from penstock.stages.reading.record_files import Records
from penstock.stages.sources.indexed_samples import IndexedSamples
from penstock.stages.sources.mix import Mix
from penstock.stages.sources.mix_plan import Schedule
from penstock.stages.sources.mixed_samples import MixedSamples
from penstock.stages.sources.source_stages import SourceStages
from penstock.stages.sources.split import SingleNodeOnly, Split, SplitByNode, SplitByWorker
from penstock.stages.sources.stream_mix import StreamMix
from penstock.stages.stage import Each, Iterated, Many, Source, Stage
from penstock.testing.stages import StageContract, write_shard

SAMPLES = tuple(
    {"__key__": f"k{n}", "__url__": "x.tar", "cls": b"%d" % n, "txt": b"text"} for n in range(7)
)
TUPLES = tuple((n, str(n)) for n in range(7))


def number(sample):
    return int(sample["cls"])


def from_a(sample):
    return {**sample, "__source__": "a"}


def is_odd(sample):
    return number(sample) % 2


class Samples(StageContract):
    """A stage that takes samples, made of its class and arguments."""

    items = SAMPLES
    kind: type = Stage
    args: tuple = ()
    kwargs: dict = {}

    def make_stage(self):
        return self.kind(*self.args, **self.kwargs)


class TestMap(Samples):
    kind, args = wds.map, (number,)


class TestMapDict(Samples):
    kind, kwargs = wds.map_dict, {"cls": int}


class TestMapTuple(Samples):
    kind, args, items, behind = wds.map_tuple, (str, None), TUPLES, (wds.to_tuple("cls", "txt"),)


class TestSelect(Samples):
    kind, args = wds.select, (is_odd,)


class TestRandomSample(Samples):
    kind, args = wds.rsample, (0.7,)


class TestSlice(Samples):
    kind, args = wds.slice, (1, 5, 2)


class TestRename(Samples):
    kind, kwargs = wds.rename, {"text": "txt;text"}


class TestRenameKeys(Samples):
    kind, args = wds.rename_keys, (("text", "*txt"),)


class TestAssociate(Samples):
    kind, args = wds.associate, ({"k1": {"n": 1}},)


class TestToTuple(Samples):
    kind, args = wds.to_tuple, ("jpg;txt", "cls")


class TestExtractKeys(Samples):
    kind, args = wds.extract_keys, ("*.txt", "cls")


class TestDecode(Samples):
    kind, args, kwargs = wds.decode, ("rgb",), {"only": ["cls", "txt"]}


class TestXDecode(Samples):
    kind, kwargs = wds.xdecode, {"cls": json.load, "json": json.load}


class TestShuffle(Samples):
    kind, args = wds.shuffle, (5,)


class TestSeededShuffle(Samples):
    kind, args, kwargs = wds.shuffle, (5,), {"seed": 3}


class TestDetShuffle(Samples):
    kind, args = wds.detshuffle, (5,)


class TestInfo(Samples):
    kind, kwargs = wds.info, {"n": 0}


class TestLogKeys(Samples):
    kind = wds.log_keys

    def make_stage(self):
        return wds.log_keys(str(self.folder / "keys"))


class TestBatched(Samples):
    kind, args, items, behind = wds.batched, (3,), TUPLES, (wds.to_tuple("cls", "txt"),)

    def same(self, found, wanted):
        return [(n.tolist(), s) for n, s in found] == [(n.tolist(), s) for n, s in wanted]


class TestListed(Samples):
    kind, args = wds.listed, (3,)


class TestUnbatched(Samples):
    kind, items = wds.unbatched, ((np.arange(3), ["a", "b", "c"]), (np.arange(2), ["d", "e"]))
    behind = (wds.to_tuple("cls", "txt"), wds.batched(4))


class TestToDevice(Samples):
    kind, args = wds.to_device, ("cpu",)


class TestUnlisted(Samples):
    kind, items, behind = wds.unlisted, ([1, 2], [], [3]), (wds.listed(4),)


class TestDynamicBucketedBatch(Samples):
    kind = wds.dynamic_bucketed_batch
    kwargs = {"len_key": "cls", "len_fn": bytes.__len__, "buffersize": 4, "collate_fn": None}
    kwargs |= {"sampler_kwargs": {"target_batch_numel": 3}}


class TestPacked(Samples):
    kind, args, kwargs = wds.packed, (9, "txt"), {"buffer": 3}
    items = tuple({"__key__": f"k{n}", "txt": [n] * (n + 1)} for n in range(7))
    behind = (wds.decode(), wds.map_dict(txt=lambda text: [ord(letter) for letter in text]))

    def same(self, found, wanted):
        return [row["txt"].tolist() for row in found] == [row["txt"].tolist() for row in wanted]


class TestGetItems(Samples):
    kind, args, items = get_items, (list(SAMPLES),), tuple(range(7))
    behind = (wds.map(lambda sample: 3),)


class TestDocuments(Samples):
    kind = documents
    items = tuple(
        {"__key__": f"k{n}", "json": b'{"images": ["a.jpg"], "texts": [null]}', "a.jpg": b"1"}
        for n in range(7)
    )
    behind = (wds.map(lambda sample: {**sample, "json": {"text_list": ["A"], "image_info": []}}),)


class TestInterleavedToDict(Samples):
    kind, args = wds.interleaved_to_dict, ("cls;txt;json",)


class TestRepeat(Samples):
    kind, args = wds.repeat, (3,)

    def test_it_runs_on_any_iterable(self):
        assert len(list(self.make_stage()(list(SAMPLES)))) == 21
        assert len(list(self.make_stage()(iter(SAMPLES)))) == 7  # an iterator comes but once


class TestResampled(Samples):
    kind, args, empty_is_error = wds.resampled, (20,), True


class TestSplitByNode(Samples):
    kind = SplitByNode


class TestSplitByWorker(Samples):
    kind = SplitByWorker


class TestSingleNodeOnly(Samples):
    kind = SingleNodeOnly


class TestCached(Samples):
    kind = wds.Cached


class TestLMDBCached(Samples):
    kind = wds.LMDBCached

    def make_stage(self):
        return wds.LMDBCached(self.folder / "cache", map_size=1e7)

    def test_nothing_gives_nothing_or_is_told(self):
        assert self.given(self.make_stage(), []) == []  # before anything else was kept


class TestDBCache(Samples):
    kind = wds.DBCache

    def make_stage(self):
        return wds.DBCache(str(self.folder / "cache.db"), 100)


class TestTarfileToSamples(Samples):
    kind, shards, kwargs = wds.tarfile_to_samples, True, {"local_paths": True}

    def make_items(self):
        return [{"url": write_shard(self.folder / f"{n}.tar", n)} for n in range(2)]


class RecordsCase(Samples):
    shards = True
    pack = None

    def make_items(self):
        path = self.folder / "records"
        path.write_bytes(b"".join(map(type(self).pack, SAMPLES)))
        return [{"url": str(path)}] * 2

    def over_shards(self):
        return wds.DataPipeline(wds.SimpleShardList(self.make_items()[0]["url"]), self.make_stage())


class TestCborsToSamples(RecordsCase):
    kind, pack = wds.cbors_to_samples, staticmethod(cbor2.dumps)


class TestMsgpacksToSamples(RecordsCase):
    kind, pack = wds.msgpacks_to_samples, staticmethod(msgpack.packb)


class SourceCase(Samples):
    source = True


class TestSimpleShardList(SourceCase):
    kind, args, kwargs = wds.SimpleShardList, ("x-{0..9}.tar",), {"seed": 1}


class TestResampledShards(SourceCase):
    kind, args = wds.ResampledShards, ("x-{0..9}.tar",)


class TestDirectoryShardList(SourceCase):
    kind = wds.DirectoryShardList

    def make_stage(self):
        return wds.DirectoryShardList(str(self.folder), mode="keep", poll=None)

    def given(self, stage, source=None, **place):
        for number in range(2):
            (self.folder / f"{number}.tar._done_").unlink(missing_ok=True)
            write_shard(self.folder / f"{number}.tar", number)
        return super().given(stage, source, **place)

    def over_shards(self):
        self.given(self.make_stage())
        write_shard(self.folder / "0.tar")
        return super().over_shards()

    def test_it_runs_on_any_iterable(self):
        write_shard(self.folder / "0.tar")
        assert len(list(self.make_stage())) == 1


class TestMapSamples(SourceCase):
    kind = wds.MapSamples

    def make_stage(self):
        return wds.MapSamples(list(SAMPLES))

    def over_shards(self):
        return wds.DataPipeline(self.make_stage())


class TestIndexedSamples(SourceCase):
    kind = IndexedSamples

    def make_stage(self):
        return IndexedSamples(str(self.folder / "{0..1}.tar"))

    def given(self, stage, source=None, **place):
        self.over_shards()
        return super().given(stage, source, **place)

    def over_shards(self):
        for number in range(2):
            if not (self.folder / f"{number}.tar").exists():
                write_shard(self.folder / f"{number}.tar", number)
        return wds.DataPipeline(self.make_stage())


class TestPlannedSamples(SourceCase):
    kind = wds.PlannedSamples

    def make_stage(self):
        urls, index = str(self.folder / "{0..1}.tar"), str(self.folder / "index.parquet")
        return wds.PlannedSamples(urls, index, plan=wds.Plan(3, length="letters"))

    def given(self, stage, source=None, **place):
        self.over_shards()
        return super().given(stage, source, **place)

    def over_shards(self):
        if not (self.folder / "index.parquet").exists():
            urls = [write_shard(self.folder / f"{number}.tar", number) for number in range(2)]
            wds.build_index(urls, self.folder / "index.parquet", columns={"letters": "cls:bytes"})
        return wds.DataPipeline(self.make_stage())


class TestPlanned(SourceCase):
    kind, args = wds.planned, (None,)

    def given(self, stage, source=None, **place):
        run = self.shards_read().start(None, Context(**place))
        return list(stage.start(run, Context(**place)))

    def shards_read(self):
        case = TestPlannedSamples()
        case.folder = self.folder
        case.over_shards()
        return case.make_stage()

    def over_shards(self):
        return wds.DataPipeline(self.shards_read(), self.make_stage())

    def test_it_runs_on_any_iterable(self):
        with pytest.raises(PipelineError, match="its source has none"):
            self.make_stage()([1, 2])


class TestRoundRobin(SourceCase):
    kind, args, origins = wds.RoundRobin, ([range(3), "ab"],), False


class TestRandomMix(SourceCase):
    kind, args, kwargs, origins = wds.RandomMix, ([range(9), "abcde"],), {"longest": True}, False


class TestStreamMix(SourceCase):
    kind, origins = StreamMix, False
    args = ([range(9), range(5)], [Schedule(2), Schedule(1)], "quota", "all")
    kwargs: ClassVar = {"names": ["a", "b"], "why": "'a' has no index"}


class TestMixedSamples(TestIndexedSamples):
    kind = MixedSamples

    def make_stage(self):
        parts = [str(self.folder / f"{number}.tar") for number in range(2)]
        (stage,) = wds.mix([IndexedSamples(urls) for urls in parts], [1, 2], until="all").pipeline
        return stage

    def over_shards(self):
        for number in range(2):
            if not (self.folder / f"{number}.tar").exists():
                write_shard(self.folder / f"{number}.tar", number)
        return wds.DataPipeline(self.make_stage())


class TestSourceStages(Samples):
    kind = SourceStages
    items = tuple({**sample, "__source__": "ab"[n % 2]} for n, sample in enumerate(SAMPLES))
    args = ({"a": (wds.map(dict),), "b": (wds.map(dict), wds.rename(n="cls"))},)
    behind = (wds.map(from_a),)


class TestMockDataset(SourceCase):
    kind, args, origins = wds.MockDataset, ({"a": 1}, 3), False


ABSTRACT = {Each, Many, Source, Split, Records, SampleFileCache, Mix, Iterated}


def subclasses(kind):
    if type(kind) is not type:  # a class that is torch's too, made when torch asked
        return set()
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def test_every_stage_has_a_contract_case():
    for package in (penstock.stages, penstock.batches):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    ours = {kind for kind in subclasses(Stage) if kind.__module__.startswith("penstock.")}
    compat = {kind for kind in ours if kind.__module__.startswith("penstock.compat")}
    covered = {case.kind for case in subclasses(Samples) if case.__name__.startswith("Test")}
    assert ours - compat - ABSTRACT - {Stage} - covered == set()


def test_a_stage_that_breaks_a_promise_is_found():
    """The suite itself is checked: a stage that forgets its arguments or changes with each run."""

    class forgetful(Stage):
        runs = 0

        def __init__(self, n):
            self.n = n

        def start(self, source, context):
            self.runs += 1
            return wds.map(lambda item: (self.runs, item)).start(source, context)

    class Case(StageContract):
        items = (1, 2)

        def make_stage(self):
            return forgetful(io.StringIO())

    case, found = Case(), []
    for name in dir(case):
        if name.startswith("test_"):
            try:
                getattr(case, name)()
            except Exception:
                found.append(name)
    assert "test_it_is_a_value" in found
    assert "test_it_travels_to_another_process" in found
    assert "test_what_it_gives_depends_only_on_the_context" in found
