"""A state is refused if the data that it depends on has changed, unless changes are accepted."""

from __future__ import annotations

import json
import os
from collections import deque, namedtuple
from pathlib import Path

import cbor2
import numpy as np
import pytest
import torch
from numbered import indexed, number, through_json, write_shards
from PIL import Image

import penstock as wds
from penstock.errors import StateError
from penstock.shards.index import build_index


@pytest.fixture
def urls(tmp_path):
    """Shards of this test, which changes them."""
    return write_shards(tmp_path)


@pytest.fixture
def others(tmp_path):
    return write_shards(tmp_path, 3, 5, first=100, name="e")


def later(*paths):
    """Set the modification times of files to a second later, as a rewrite would."""
    for path in paths:
        status = os.stat(path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))


def rewrite(path):
    """Replace the texts of a shard by others of equal lengths."""
    shard = Path(path)
    shard.write_bytes(shard.read_bytes().replace(b"text ", b"TEXT "))


def state_after(pipeline, steps):
    stream = iter(pipeline)
    for _ in range(steps):
        next(stream)
    return through_json(pipeline.state_dict())


def resumed(pipeline, state, **options):
    pipeline.load_state_dict(state, **options)
    return list(pipeline)


def streamed(urls, **options):
    return wds.WebDataset(urls, shardshuffle=False, **options).map(number)


SHAPES = {
    "plain": streamed,
    "two lanes": lambda urls: streamed(urls, lanes=2),
    "a handler that continues": lambda urls: streamed(urls, handler=wds.ignore_and_continue),
    "nested": lambda urls: wds.DataPipeline(streamed(urls), wds.listed(2)),
    "mixed": lambda urls: wds.DataPipeline(wds.RoundRobin([streamed(urls), [1, 2, 3]])),
    "loader": lambda urls: wds.WebLoader(streamed(urls), batch_size=2),
    "loader on threads": lambda urls: wds.WebLoader(
        streamed(urls), batch_size=None, num_workers=1, engine="threads"
    ),
    "loader with a worker": lambda urls: wds.WebLoader(
        streamed(urls), batch_size=None, num_workers=1
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shard_that_changed_while_it_was_open_is_refused(urls, tmp_path, name):
    make = SHAPES[name]
    state = state_after(make(urls), 2)
    write_shards(tmp_path, first=100)  # other samples
    later(*urls)
    with pytest.raises(StateError, match="shard has changed since"):
        resumed(make(urls), state)
    assert resumed(make(urls), state, changed="accept")


def pass_on(source):
    yield from source


def fails_at_one(item):
    if item == 1:
        raise ValueError(item)
    return item


REPLAYED = {
    "generator": lambda urls: wds.DataPipeline(streamed(urls), pass_on),
    "generator with lanes": lambda urls: wds.DataPipeline(streamed(urls), pass_on, lanes=2),
    "cache": lambda urls: streamed(urls).mcached(),
    "repeat": lambda urls: wds.DataPipeline(streamed(urls).repeat(2), pass_on),
    "cut": lambda urls: wds.DataPipeline(streamed(urls), pass_on).with_epoch(40),
    "loader with a worker": lambda urls: wds.WebLoader(
        streamed(urls).compose(pass_on), batch_size=None, num_workers=1
    ),
}


@pytest.mark.filterwarnings("ignore:.*cannot save", "ignore:.*cannot be saved")
@pytest.mark.parametrize("steps", [2, 30])
@pytest.mark.parametrize("name", REPLAYED)
def test_a_shard_that_a_replay_reads_again_is_compared(urls, name, steps):
    make = REPLAYED[name]
    if steps == 30 and name not in ("repeat", "cut"):
        steps = 14  # in a later shard
    state = state_after(make(urls), steps)
    assert resumed(make(urls), state)
    rewrite(urls[0])
    later(urls[0])
    with pytest.raises(StateError, match="shard has changed since"):
        resumed(make(urls), state)
    assert resumed(make(urls), state, changed="accept")


def test_a_shard_read_before_an_exception_and_the_first_checkpoint_is_compared(urls):
    first = streamed(urls).map(fails_at_one)
    stream = iter(first)
    with pytest.raises(ValueError, match="1"):
        list(stream)
    state = through_json(first.state_dict())
    later(urls[0])
    with pytest.raises(StateError, match="shard has changed since"):
        resumed(streamed(urls).map(fails_at_one), state)


def test_the_error_names_the_shard_and_what_it_was(urls):
    state = state_after(streamed(urls), 2)
    size = os.path.getsize(urls[0])
    with open(urls[0], "ab") as file:
        file.write(bytes(512))
    message = rf"it had {size} bytes .* and has {size + 512} bytes .*accept.*d000\.tar"
    with pytest.raises(StateError, match=message):
        resumed(streamed(urls), state)


def test_a_shard_whose_samples_wait_in_a_buffer_is_refused(urls, tmp_path):
    def make():
        return streamed(urls).shuffle(12, initial=12)

    state = state_after(make(), 2)  # the reader is in the third shard
    later(urls[0])
    with pytest.raises(StateError, match=r"d000\.tar"):
        resumed(make(), state)


@pytest.mark.parametrize("buffer", [1, 10])
def test_records_that_changed_are_refused(tmp_path, buffer):
    path = str(tmp_path / "numbers.cbors")

    def write(first):
        with open(path, "wb") as file:
            for n in range(10):
                file.write(cbor2.dumps(first + n))

    def make():
        source = wds.SimpleShardList([path])
        return wds.DataPipeline(source, wds.cbors_to_samples(), wds.shuffle(buffer), seed=1)

    write(100)
    whole = list(make())
    state = state_after(make(), 3)
    assert resumed(make(), state) == whole[3:]
    write(200)
    later(path)
    with pytest.raises(StateError, match=r"numbers\.cbors"):
        resumed(make(), state)
    changed = resumed(make(), state, changed="accept")
    assert changed == [n + 100 for n in whole[3:]]


def records(path):
    return wds.DataPipeline(wds.SimpleShardList(path), wds.cbors_to_samples())


def write_records(folder):
    path = folder / "numbers.cbors"
    path.write_bytes(b"".join(map(cbor2.dumps, range(100, 120))))
    return [str(path)]


@pytest.mark.parametrize("earlier", [False, True], ids=["accepted", "state of an earlier version"])
@pytest.mark.parametrize("kind", ["samples", "records"])
def test_a_shard_that_changes_again_after_a_resume_is_refused(urls, tmp_path, kind, earlier):
    paths, make = (urls, streamed) if kind == "samples" else (write_records(tmp_path), records)
    state = state_after(make(paths), 2)
    if earlier:
        del state["check"]
        del state["state"]["0"]["run"]["versions"]
    else:
        later(paths[0])
    second = make(paths)
    second.load_state_dict(state, changed="accept")
    state = state_after(second, 1)
    whole = list(make(paths))
    assert resumed(make(paths), state) == whole[3:]
    later(paths[0])
    with pytest.raises(StateError, match="shard has changed since"):
        resumed(make(paths), state)


def test_shards_that_were_not_opened_yet_may_change(urls, tmp_path):
    whole = list(streamed(urls))
    state = state_after(streamed(urls), 2)
    later(*urls[1:])
    assert resumed(streamed(urls), state) == whole[2:]


def test_copies_of_open_shards_in_another_folder_are_taken(urls, tmp_path):
    whole = list(streamed(urls))
    state = state_after(streamed(urls), 2)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    copies = write_shards(elsewhere)
    later(*copies)
    assert resumed(streamed(copies), state) == whole[2:]
    elsewhere.joinpath("d000.tar").write_bytes(bytes(5120))
    with pytest.raises(StateError, match=r"d000\.tar"):
        resumed(streamed(copies), state)


@pytest.mark.parametrize("second", [False, True])
def test_indexed_shards_that_were_indexed_again_are_refused(urls, others, tmp_path, second):
    texts = tmp_path / "texts"
    texts.mkdir()

    def write(first):
        paths = write_shards(texts, name="t")
        if first:
            for path in paths[1:2]:
                rewrite(path)
            later(*paths)
            os.unlink(texts / "t.index.parquet")
        return paths

    def make():
        if second:
            return indexed(urls, join=wds.Join(write(False), fields=["txt"], prefix="other_"))
        return indexed(write(False))

    first = make()
    state = state_after(first, 3)
    write(True)
    paths = [str(texts / f"t{n:03d}.tar") for n in range(4)]

    def again():
        if second:
            return indexed(urls, join=wds.Join(paths, fields=["txt"], prefix="other_"))
        return indexed(paths)

    with pytest.raises(StateError, match=r"t001\.tar has changed since"):
        again().load_state_dict(state)
    assert len(resumed(again(), state, changed="accept")) == 21


def mixed(urls, others):
    return wds.mix({"a": indexed(urls), "b": indexed(others)}, [1, 1], until="all")


def round_robin(urls, others):
    return wds.DataPipeline(wds.RoundRobin([mixed(urls, others), streamed(urls)]), wds.listed(1))


MIXTURES = {
    "plain": mixed,
    "in a mixture": lambda a, b: wds.mix({"m": mixed(a, b), "c": indexed(a, seed=5)}, seed=1),
    "in a mixture of streams": lambda a, b: wds.mix({"m": mixed(a, b), "c": streamed(a)}, seed=1),
    "in a RoundRobin": round_robin,
    "loader": lambda a, b: wds.WebLoader(mixed(a, b), batch_size=None),
    "loader of a RoundRobin": lambda a, b: wds.WebLoader(round_robin(a, b), batch_size=None),
    "loader with a worker": lambda a, b: wds.WebLoader(mixed(a, b), batch_size=None, num_workers=1),
}


@pytest.mark.filterwarnings("ignore:mix")
@pytest.mark.parametrize("grown", [False, True], ids=["same sizes", "grown"])
@pytest.mark.parametrize("name", MIXTURES)
def test_a_source_of_a_mixture_that_was_indexed_again_is_refused(
    urls, others, tmp_path, name, grown
):
    def make():
        return MIXTURES[name](urls, others)

    build_index(others, tmp_path / "e.index.parquet")
    build_index(urls, tmp_path / "d.index.parquet")
    state = state_after(make(), 6)
    assert resumed(make(), state)
    if grown:
        write_shards(tmp_path, 3, 6, first=100, name="e")
    for path in others:
        rewrite(path)
    later(*others)
    build_index(others, tmp_path / "e.index.parquet")
    with pytest.raises(StateError, match=r"[bm]'? ha(s|ve) changed"):
        resumed(make(), state)
    if not grown:
        assert resumed(make(), state, changed="accept")


@pytest.fixture
def images(tmp_path):
    root = tmp_path / "images"
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for n in range(4):
            Image.new("RGB", (4, 3), (n, 0, 0)).save(root / name / f"{n}.png")
    return root


FOLDERS = {
    "pipeline": lambda root: wds.ImageFolder(root).pipeline(raw=True, shuffle=True, seed=1),
    "MapSamples": lambda root: wds.DataPipeline(wds.MapSamples(wds.ImageFolder(root))),
    "loader": lambda root: wds.WebLoader(wds.ImageFolder(root), batch_size=None),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_an_image_that_was_overwritten_is_refused(images, name):
    make = FOLDERS[name]
    state = state_after(make(images), 3)
    assert len(resumed(make(images), state)) == 5
    image = images / "dog" / "2.png"
    image.write_bytes(image.read_bytes())
    later(image)
    with pytest.raises(StateError, match=r"dog/2\.png has changed since"):
        make(images).load_state_dict(state)
    assert len(resumed(make(images), state, changed="accept")) == 5


def test_a_copy_of_an_image_folder_is_taken(images, tmp_path):
    import shutil

    state = state_after(FOLDERS["pipeline"](images), 3)
    copy = shutil.copytree(images, tmp_path / "copy", copy_function=shutil.copyfile)
    later(*copy.glob("*/*.png"))
    assert len(resumed(FOLDERS["pipeline"](copy), state)) == 5


ITEMS = [
    [{"path": f"{n}.jpg", "label": n} for n in range(100)],
    [f"{n}.jpg" for n in range(100)],
    [(n, float(n), None, b"bytes") for n in range(100)],
    list(range(100)),
]


@pytest.mark.parametrize("items", ITEMS, ids=["dicts", "texts", "tuples", "numbers"])
def test_a_list_of_other_items_is_refused(items):
    def make(values):
        return wds.DataPipeline(wds.MapSamples(values, shuffle=True))

    whole = list(make(items))
    state = state_after(make(items), 10)
    assert resumed(make(json.loads(json.dumps(items)) if type(items[0]) is dict else items), state)
    assert resumed(make(items), state) == whole[10:]
    with pytest.raises(StateError, match="item 1"):
        make([*items[:1], items[2], items[1], *items[3:]]).load_state_dict(state)


def objects(first):
    return np.array([[{"number": n}] for n in range(first, first + 50)], dtype=object)


ARRAYS = {
    "range": lambda first: range(first, first + 50),
    "array": lambda first: np.arange(first, first + 50),
    "rows of an array": lambda first: np.arange(first, first + 100).reshape(50, 2),
    "array of objects": lambda first: list(objects(first)),
    "list of arrays": lambda first: [np.arange(3) + n for n in range(first, first + 50)],
    "list of dicts of numbers of numpy": lambda first: [
        {"x": np.int64(n), "day": np.datetime64(n, "D")} for n in range(first, first + 50)
    ],
    "tensor": lambda first: torch.arange(first, first + 50).bfloat16(),
    "list of tensors": lambda first: [torch.arange(3) + n for n in range(first, first + 50)],
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_and_ranges_of_other_values_are_refused(kind):
    def make(first):
        return wds.DataPipeline(wds.MapSamples(ARRAYS[kind](first)))

    state = state_after(make(0), 10)
    assert len(resumed(make(0), state)) == 40
    with pytest.raises(StateError, match="item 0 has changed"):
        make(1).load_state_dict(state)


def test_the_items_of_a_loader_are_compared_once_and_not_for_every_state():
    reads = []

    class Counted(str):
        """A text that reports when a part of it is taken, as to compare it."""

        def __getitem__(self, part):
            reads.append(part)
            return super().__getitem__(part)

    loader = wds.WebLoader([Counted(n) for n in range(50)], batch_size=5)
    state_after(loader, 3)
    before = len(reads)
    assert before > 0
    loader.state_dict()
    assert len(reads) == before


def test_a_state_without_versions_is_taken_as_before(urls):
    state = state_after(streamed(urls), 2)
    del state["check"]
    del state["state"]["0"]["run"]["versions"]
    later(*urls)
    assert resumed(streamed(urls), state) == list(range(2, 24))


def test_an_unknown_value_of_changed_is_an_error(urls):
    state = state_after(streamed(urls), 2)
    with pytest.raises(wds.PipelineError, match="changed is 'refuse' or 'accept'"):
        streamed(urls).load_state_dict(state, changed="yes")


# ── containers of torch, and collections that are almost lists ──────────────────────────


class LoadedList(list):
    """A program's list of names, whose items are loaded when they are read."""

    def __getitem__(self, number):
        return np.array([len(super().__getitem__(number))])


Pair = namedtuple("Pair", "name label")
SETS = {
    "ConcatDataset": lambda v: torch.utils.data.ConcatDataset([["a", "b"], ["c", v]]),
    "the data of a Subset": lambda v: torch.utils.data.Subset(["a", "b", v], [0, 2]),
    "the indices of a Subset": lambda v: torch.utils.data.Subset(list(range(20)), [0, len(v)]),
    "TensorDataset": lambda v: torch.utils.data.TensorDataset(torch.tensor([1, len(v)])),
    "nested": lambda v: torch.utils.data.Subset(torch.utils.data.ConcatDataset([["a", v]]), [0, 1]),
    "a subclass of list": lambda v: LoadedList(["a", v]),
    "deque": lambda v: deque(["a", v]),
    "named tuples": lambda v: [Pair("a", 1), Pair(v, 2)],
}


@pytest.mark.parametrize("loader", [wds.SaveableDataLoader, wds.WebLoader])
@pytest.mark.parametrize("kind", SETS)
def test_a_changed_item_inside_a_container_is_refused(kind, loader):
    make = lambda value: loader(SETS[kind](value), batch_size=1, collate_fn=list)  # noqa: E731
    state = state_after(make("old"), 1)
    with pytest.raises(StateError, match="has changed"):
        make("another").load_state_dict(state)
    make("old").load_state_dict(state)
    make("another").load_state_dict(state, changed="accept")


class Wrapper(torch.utils.data.IterableDataset):
    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        yield from self.dataset


INSIDE = {
    "a sum": lambda urls: wds.DataPipeline(indexed(urls) + indexed(urls)),
    "a sum in a loader": lambda urls: wds.WebLoader(indexed(urls) + indexed(urls), batch_size=None),
    "a wrapper": lambda urls: wds.DataPipeline(Wrapper(indexed(urls))),
    "a wrapper in a loader": lambda urls: wds.WebLoader(Wrapper(indexed(urls)), batch_size=None),
}


@pytest.mark.parametrize("name", INSIDE)
def test_indexed_shards_of_pipelines_inside_other_data_sets_are_compared(urls, name):
    state = state_after(INSIDE[name](urls), 5)
    rewrite(urls[1])
    index = Path(urls[0]).with_name("d.index.parquet")
    index.unlink()
    build_index(urls, index)
    with pytest.raises(StateError, match=r"d001\.tar has changed since"):
        resumed(INSIDE[name](urls), state)


@pytest.mark.parametrize("loader", [wds.WebLoader, wds.SaveableDataLoader])
def test_a_row_of_a_manifest_that_changed_is_refused(loader):
    rows = {f"r{n}": {"x": n} for n in range(12)}

    def make():
        dataset = wds.DynamicItemDataset(rows, output_keys=["x"])
        return loader(dataset, batch_size=2)

    state = state_after(make(), 3)
    make().load_state_dict(state)
    rows["r9"]["x"] = 90
    with pytest.raises(StateError, match="row r9 has changed since"):
        make().load_state_dict(state)


@pytest.mark.parametrize("mixed", [False, True])
def test_stages_do_not_change_the_items_of_the_callers_list(mixed):
    def square(sample):
        sample["squared"] = sample["n"] ** 2
        return sample

    items = [{"__key__": str(n), "n": n} for n in range(12)]

    def make():
        squares = wds.DataPipeline(items).map(square)
        return wds.mix({"a": squares, "b": wds.DataPipeline(items)}) if mixed else squares

    whole = list(make())
    state = state_after(make(), 5)
    assert items == [{"__key__": str(n), "n": n} for n in range(12)]
    assert resumed(make(), state) == whole[5:]
