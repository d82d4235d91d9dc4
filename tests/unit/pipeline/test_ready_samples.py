"""Tiny samples go through quiet stages by the hundred: nothing but the time it takes may differ."""

from __future__ import annotations

import pytest

import penstock as wds
from penstock.batches.batched import BatchedRun
from penstock.engine import item_cost as pace
from penstock.engine import segment_run as row
from penstock.shards import bulk_headers as stretch
from penstock.testing import assert_resumes

COUNT = 150


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    pattern = str(folder / "tiny-%d.tar")
    with wds.ShardWriter(pattern, maxcount=COUNT, verbose=0) as sink:
        for number in range(2 * COUNT):
            sink.write({"__key__": f"{number:05}", "json": {"n": number}, "cls": number % 7})
    return [pattern % 0, pattern % 1]


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A shard in which some samples cannot be decoded, or have a None."""
    name = str(tmp_path_factory.mktemp("broken") / "broken.tar")
    odd = {61: b"{", 62: b"[1", 99: b"null", 140: b"{"}
    with wds.TarWriter(name, encoder=False) as sink:
        for number in range(COUNT):
            data = odd.get(number, b'{"n": %d}' % number)
            sink.write({"__key__": f"{number:05}", "json": data, "cls": b"%d" % number})
    return name


@pytest.fixture
def one_by_one(monkeypatch):
    """The switch that lets every sample come by itself."""

    def switch():
        monkeypatch.setattr(wds.stages.reading.tar_samples.ReadRun, "gives_ready", False)

    return switch


@pytest.fixture
def together(monkeypatch):
    """How many samples were batched without having come by themselves."""
    taken = []
    sound = BatchedRun.__iter__

    def watched(self):
        passed = self.source.passed
        self.source.passed = lambda count: (taken.append(count), passed(count))
        return sound(self)

    monkeypatch.setattr(BatchedRun, "__iter__", watched)
    return taken


def plain(urls, **options):
    return wds.WebDataset(urls, shardshuffle=False, **options).decode().to_tuple("json", "cls")


def told(batches):
    return [(objects, labels.tolist()) for objects, labels in batches]


def test_batches_are_those_of_samples_that_come_one_by_one(urls, together, one_by_one):
    data = plain(urls).batched(64)
    found = told(data)
    assert sum(together) > COUNT
    together.clear()
    one_by_one()
    assert told(data) == found
    assert not together


def test_every_batch_knows_its_samples(urls, one_by_one):
    def origins():
        data = plain(urls).batched(32)
        return [list(map(str, data.origins())) for _ in data]

    found = origins()
    assert [len(batch) for batch in found[:-1]] == [32] * 9
    one_by_one()
    assert origins() == found


def test_a_run_stopped_behind_any_batch_goes_on(urls, together):
    assert_resumes(lambda: plain(urls).batched(17))
    assert together


def test_states_are_those_of_samples_that_come_one_by_one(urls, one_by_one):
    def states():
        data = plain(urls).batched(17)
        return [data.state_dict() for _ in data]

    found = states()
    one_by_one()
    assert states() == found


def test_batches_that_are_shuffled_behind_go_on(urls):
    assert_resumes(lambda: plain(urls).batched(9).shuffle(5), every=4)


@pytest.fixture
def cheap(monkeypatch):
    """All samples are worked on in the pipeline's thread: in short stretches, a few measured."""
    monkeypatch.setattr(pace, "CHEAP_SECONDS", 10.0)
    monkeypatch.setattr(pace, "DEAR_SECONDS", 10.0)
    monkeypatch.setattr(pace, "MEASURED", 4)
    monkeypatch.setattr(row, "CHEAP_RUN", 70)


def loader(urls, threads=2):
    data = plain(urls).batched(17)
    return wds.WebLoader(data, num_workers=threads, batch_size=None, engine="threads")


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_loader_on_threads_goes_on_behind_any_batch(urls, threads, together):
    assert_resumes(lambda: loader(urls, threads), every=3)
    assert sum(together) > COUNT


@pytest.mark.usefixtures("cheap")
def test_states_on_threads_are_those_of_samples_that_come_one_by_one(urls, one_by_one):
    def states():
        data = loader(urls)
        return [data.state_dict() for _ in data]

    found = states()
    one_by_one()
    assert states() == found


@pytest.mark.parametrize("handlers", ["decode", "to_tuple", "both"])
@pytest.mark.parametrize("handler", [wds.ignore_and_continue, wds.ignore_and_stop])
def test_handlers_hear_of_the_same_samples_once(broken, handler, handlers, together, one_by_one):
    def found():
        heard = []

        def listen(error):
            heard.append(str(error))
            return handler(error)

        mine = {"handler": listen}
        data = wds.WebDataset(broken, shardshuffle=False)
        data = data.decode(**(mine if handlers != "to_tuple" else {}))
        data = data.to_tuple("json", "cls", **(mine if handlers != "decode" else {})).batched(40)
        batches = []
        try:
            batches += told(data)
        except wds.PenstockError as error:
            heard.append(f"raised {error}")
        return batches, heard, data.skipped

    first = found()
    assert together
    one_by_one()
    assert found() == first


@pytest.mark.parametrize("engine", [None, "threads"])
def test_an_error_names_the_sample_it_is_about(broken, engine):
    data = plain([broken]).batched(40)
    stream = data if engine is None else wds.WebLoader(data, num_workers=1, batch_size=None, engine=engine)  # fmt: skip  # noqa: E501
    batches = iter(stream)
    assert len(next(batches)[0]) == 40
    with pytest.raises(wds.DecodingError, match=r"cannot read 'json'.*broken.tar.*'00061' at byte"):
        next(batches)


def test_a_state_behind_an_error_is_that_of_samples_that_come_one_by_one(broken, one_by_one):
    def state():
        data = plain([broken]).batched(100)
        with pytest.raises(wds.DecodingError):
            list(data)
        return data.state_dict()

    found = state()
    one_by_one()
    assert state() == found


@pytest.mark.parametrize("stage", ["map", "select", "decode"])
def test_a_users_function_sees_each_sample_in_its_turn(urls, stage, together):
    seen = []

    def look(*words):
        seen.append(len(seen))
        return True if stage == "select" else words[0] if stage == "map" else None

    data = wds.WebDataset(urls, shardshuffle=False)
    batches = iter(getattr(data, stage)(look).to_tuple("cls").batched(10))
    next(batches)
    assert len(seen) == (20 if stage == "decode" else 10)
    assert not together


def test_no_more_is_decoded_than_the_batch_needs(urls, monkeypatch):
    decoded = []
    sound = wds.Decoder.decode_alike

    def counted(self, samples):
        decoded.append(len(samples))
        return sound(self, samples)

    monkeypatch.setattr(wds.Decoder, "decode_alike", counted)
    next(iter(plain(urls).batched(50)))
    assert 40 < sum(decoded) < 50


def test_samples_with_other_fields_are_decoded_one_by_one():
    decoder = wds.Decoder()
    whole = {"__key__": "a", "cls": b"1", "txt": b"x"}
    assert decoder.decode_alike([whole, whole]) == [{"__key__": "a", "cls": 1, "txt": "x"}] * 2
    for other in ({"cls": b"1"}, {**whole, "txt": 3}, {"__key__": "a", "cls": b"1", "json": b"1"}):
        assert decoder.decode_alike([whole, other]) == []
    assert decoder.decode_alike([whole, {**whole, "__key__": b"b"}]) == []


def test_decoding_together_ends_before_a_sample_that_cannot_be_read():
    samples = [{"cls": value, "txt": b"x"} for value in (b"1", b"2", b"?", b"3")]
    assert wds.Decoder().decode_alike(samples) == [{"cls": 1, "txt": "x"}, {"cls": 2, "txt": "x"}]
    assert wds.Decoder().decode_alike(samples[2:]) == []


def test_windows_of_any_size_give_the_same(urls, monkeypatch):
    found = told(plain(urls).batched(32))
    for least in (1, 2, 64):
        monkeypatch.setattr(stretch, "LEAST", least)
        assert told(plain(urls).batched(32)) == found


class Marked(wds.to_tuple):
    def apply(self, item):
        return ("mine", *super().apply(item))


class More(wds.decode):
    def apply(self, item):
        return {**super().apply(item), "mine": True}


@pytest.mark.parametrize("stage", [Marked("json", "cls"), More()])
@pytest.mark.parametrize("engine", ["none", "threads"])
def test_what_a_subclass_does_itself_is_done_to_every_sample(urls, engine, stage):
    data = wds.WebDataset(urls, shardshuffle=False).compose(stage, wds.listed(20))
    if engine == "threads":
        data = wds.WebLoader(data, num_workers=2, batch_size=None, engine="threads")
    samples = [sample for batch in data for sample in batch]
    assert len(samples) == 2 * COUNT
    assert all("mine" in sample for sample in samples)


def test_a_codec_of_the_users_own_is_asked_once_for_each_sample(urls, monkeypatch):
    asked = []

    def read(data):
        asked.append(data)
        if data == b"3":
            raise ValueError("a three")
        return data

    monkeypatch.setitem(wds.codecs.DECODERS, "cls", read)
    data = wds.WebDataset(urls[0], shardshuffle=False).decode(handler=wds.ignore_and_continue)
    taken = sum(map(len, data.listed(20)))
    assert len(asked) == COUNT
    assert taken == COUNT - asked.count(b"3")
