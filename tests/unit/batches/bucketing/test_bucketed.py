"""Batches of like length on a stream."""

from __future__ import annotations

import functools
import pickle
import random
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as wds
from penstock.batches.bucketing.length_buffer import LengthItem

SIZES = {"target_batch_numel": 40, "max_batch_numel": 60}


def sounds(lengths):
    return [{"__key__": f"s{n}", "length": length} for n, length in enumerate(lengths)]


def bucketed(lengths, **options):
    options = {"len_key": "length", "len_fn": None, "sampler_kwargs": SIZES, **options}
    return wds.dynamic_bucketed_batch(iter(sounds(lengths)), collate_fn=None, **options)


def lengths_of(batches):
    return [[sample["length"] for sample in batch] for batch in batches]


def spread(count, seed=0):
    rng = random.Random(seed)
    return [min(max(round(rng.lognormvariate(2, 0.6), 2), 1), 35) for _ in range(count)]


# ── what comes out ──────────────────────────────────────────────────────────────────────────────


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 50), max_size=200),
    buffersize=st.integers(1, 40),
    max_wait=st.none() | st.integers(1, 100),
)
def test_every_sample_comes_once_in_batches_within_the_budget(lengths, buffersize, max_wait):
    batches = list(bucketed(lengths, buffersize=buffersize, max_wait=max_wait))
    assert sorted(s["__key__"] for b in batches for s in b) == sorted(
        s["__key__"] for s in sounds(lengths)
    )
    for batch in lengths_of(batches):
        assert batch == sorted(batch, reverse=True)
        assert len(batch) * batch[0] <= 60 or len(batch) == 1
        assert wds.padding_ratio(batch) <= 0.2 + 1e-9


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=300),
    buffersize=st.integers(1, 40),
    max_wait=st.integers(1, 60),
)
def test_no_sample_waits_for_more_than_max_wait_later_ones(lengths, buffersize, max_wait):
    came = {}

    def source():
        for sample in sounds(lengths):
            came[sample["__key__"]] = len(came)
            yield sample

    stage = wds.dynamic_bucketed_batch(
        "length",
        None,
        buffersize=buffersize,
        collate_fn=None,
        sampler_kwargs=SIZES,
        max_wait=max_wait,
    )
    for batch in stage(source()):
        for sample in batch:
            assert len(came) - 1 - came[sample["__key__"]] <= max_wait


def test_without_a_word_nobody_waits_longer_than_four_buffers_and_padding_is_small():
    lengths, came, waits, padded, total = spread(20_000), [0], [], 0.0, 0.0

    def source():
        for number, length in enumerate(lengths):
            came[0] += 1
            yield {"length": length, "number": number}

    sizes = {"target_batch_numel": 450, "max_batch_numel": 600}
    stage = wds.dynamic_bucketed_batch("length", None, collate_fn=None, sampler_kwargs=sizes)
    for batch in stage(source()):
        found = [sample["length"] for sample in batch]
        waits += [came[0] - 1 - sample["number"] for sample in batch]
        padded += wds.total_length_with_padding(found)
        total += sum(found)
    assert max(waits) <= 4 * 1024
    assert 1 - total / padded < 0.05  # a random pivot alone gives 4.2 %


def test_nothing_comes_before_the_buffer_is_full():
    taken = []
    source = (taken.append(s) or s for s in sounds([5] * 30))
    stage = wds.dynamic_bucketed_batch(
        "length", None, buffersize=20, collate_fn=None, sampler_kwargs=SIZES
    )
    next(stage(source))
    assert len(taken) == 20


def test_the_end_is_flushed_or_dropped():
    assert sum(map(len, bucketed([5] * 30, buffersize=20))) == 30
    given = sum(map(len, bucketed([5] * 30, buffersize=20, drop_end=True)))
    assert 0 < given < 30


def test_too_short_and_too_long_samples_are_left_out_and_counted():
    pipeline = wds.DataPipeline(
        sounds([1, 5, 6, 30]),
        wds.dynamic_bucketed_batch("length", None, 2, 20, collate_fn=None, sampler_kwargs=SIZES),
    )
    assert lengths_of(pipeline) == [[6, 5]]
    assert pipeline.skipped == {"dynamic_bucketed_batch": 2}


def test_the_order_is_another_one_every_epoch_and_the_same_for_one_seed():
    pipeline = wds.DataPipeline(
        sounds(spread(300)),
        wds.dynamic_bucketed_batch(
            "length", None, buffersize=64, collate_fn=None, sampler_kwargs=SIZES
        ),
        seed=7,
    )
    first, second = lengths_of(pipeline), lengths_of(pipeline)
    pipeline.set_epoch(0)
    assert first != second
    assert lengths_of(pipeline) == first


# ── ways to write it ────────────────────────────────────────────────────────────────────────────


def test_the_stage_the_function_then_compose_and_the_method_are_the_same():
    data, options = sounds(spread(100)), {"buffersize": 32, "collate_fn": None}
    options |= {"len_key": "length", "len_fn": None, "sampler_kwargs": SIZES}
    wanted = list(wds.dynamic_bucketed_batch(**options)(iter(data)))
    assert list(wds.dynamic_bucketed_batch(data, **options)) == wanted
    assert list(wds.dynamic_bucketed_batch(data=iter(data), **options)) == wanted
    source = wds.DataPipeline(data)
    chains = [
        source.then(wds.dynamic_bucketed_batch, **options),
        source.compose(wds.dynamic_bucketed_batch(**options)),
        source.compose(functools.partial(wds.dynamic_bucketed_batch, **options)),
        source.dynamic_bucketed_batch(**options),
    ]
    found = [list(chain) for chain in chains]
    assert all(batches == found[0] for batches in found)
    assert sorted(s["__key__"] for b in found[0] for s in b) == sorted(s["__key__"] for s in data)


def test_the_stage_is_a_value():
    stage = wds.dynamic_bucketed_batch("signal", sampler_kwargs=SIZES)
    assert stage == pickle.loads(pickle.dumps(stage))
    assert repr(stage).startswith("dynamic_bucketed_batch('signal', sampler_kwargs=")


def test_repeat_before_it_does_not_drain_the_buffer():
    pipeline = wds.DataPipeline(sounds([4] * 30)).repeat(4)
    pipeline = pipeline.then(
        wds.dynamic_bucketed_batch,
        len_key="length",
        len_fn=None,
        buffersize=20,
        collate_fn=None,
        sampler_kwargs=SIZES,
    )
    sizes = [len(batch) for batch in pipeline]
    assert sizes == [10] * 12


# ── samples that cannot be measured ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "length", [0, -1, float("nan"), float("inf"), None, "4", True, np.zeros(2)]
)
def test_what_is_no_length_is_an_error_that_names_it(length):
    with pytest.raises(wds.SampleError, match="finite number above 0: the length of 'length' is"):
        list(bucketed([4, length]))


def test_numbers_of_numpy_and_torch_are_lengths():
    torch = pytest.importorskip("torch")
    lengths = [np.float32(4.5), np.int64(4), torch.tensor(4), 5]
    assert sum(map(len, bucketed(lengths))) == 4


def test_a_missing_field_is_an_error_that_names_the_fields():
    with pytest.raises(wds.SampleError, match=r"no field 'signal' in \['__key__', 'length'\]"):
        list(bucketed([1], len_key="signal"))


def test_a_bad_length_says_where_it_stands(tmp_path):
    with wds.TarWriter(str(tmp_path / "a.tar")) as sink:
        sink.write({"__key__": "good", "cls": 3})
        sink.write({"__key__": "bad", "cls": 0})
    data = wds.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False).decode()
    options = {"len_key": "cls", "len_fn": None, "collate_fn": None, "sampler_kwargs": SIZES}
    with pytest.raises(wds.SampleError, match=r"a\.tar, sample 'bad' at byte \d+"):
        list(data.then(wds.dynamic_bucketed_batch, **options))
    kept = data.then(wds.dynamic_bucketed_batch, handler=wds.ignore_and_continue, **options)
    assert [[s["__key__"] for s in batch] for batch in kept] == [["good"]]
    assert kept.skipped == {"dynamic_bucketed_batch": 1}
    stopped = data.then(wds.dynamic_bucketed_batch, handler=wds.ignore_and_stop, **options)
    assert sum(map(len, stopped)) == 1


def test_a_sample_above_the_budget_comes_alone_with_one_warning():
    with pytest.warns(UserWarning, match="above max_batch_numel=60 and gets") as caught:
        batches = lengths_of(bucketed([4, 70, 5, 80]))
    assert [70] in batches
    assert [80] in batches
    assert len(caught) == 1


def test_a_sample_above_the_budget_is_skipped_or_an_error_as_one_says():
    assert lengths_of(bucketed([4, 70], over="skip")) == [[4]]
    with pytest.raises(wds.SampleError, match=r"length 70 is above max_batch_numel=60"):
        list(bucketed([4, 70], over="error"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler_kwargs": {}}, "size of a batch is missing"),
        ({"sampler_kwargs": {"target_batch_numel": 4, "size": 3}}, r"has \['size'\]"),
        ({"sampler_kwargs": {"target_batch_numel": 0}}, "above 0, not 0"),
        ({"len_fn": None, "len_key": None}, "len_key and len_fn are None"),
        ({"over": "own"}, "'alone', 'skip' or 'error'"),
        ({"buffersize": 0}, "buffersize must be at least 1"),
        ({"max_wait": 0}, "max_wait=0 must be at least 1"),
        ({"sampler_fn": min, "max_wait": 9}, "with another sampler_fn"),
    ],
)
def test_arguments_that_cannot_work_are_told_at_once(options, message):
    with pytest.raises(wds.PipelineError, match=message):
        wds.dynamic_bucketed_batch(**{"sampler_kwargs": SIZES, **options})


# ── prepared samples ────────────────────────────────────────────────────────────────────────────


def decoded(sample):
    return {**sample, "signal": [0.0] * sample["length"] * sample.get("real", 1)}


def test_the_buffer_holds_samples_that_are_prepared_when_their_batch_is_made():
    prepared = []
    stage = wds.dynamic_bucketed_batch(
        "length",
        None,
        buffersize=20,
        collate_fn=None,
        sampler_kwargs=SIZES,
        prepare=lambda sample: prepared.append(sample) or decoded(sample),
    )
    batch = next(stage(iter(sounds([4] * 40))))
    assert len(prepared) == len(batch) == 10
    assert all(len(sample["signal"]) == 4 for sample in batch)


def test_a_batch_that_is_too_large_once_decoded_comes_in_parts():
    samples = sounds([4] * 40)
    for sample in samples[::3]:
        sample["real"] = 5
    stage = wds.dynamic_bucketed_batch(
        "length",
        None,
        buffersize=20,
        collate_fn=None,
        sampler_kwargs=SIZES,
        prepare=decoded,
        prepared_len=lambda sample: len(sample["signal"]),
    )
    batches = list(stage(iter(samples)))
    assert sorted(s["__key__"] for b in batches for s in b) == sorted(s["__key__"] for s in samples)
    for batch in batches:
        assert len(batch) * max(len(sample["signal"]) for sample in batch) <= 60


def test_a_sample_that_cannot_be_prepared_is_left_out_counted_and_located(tmp_path):
    with wds.TarWriter(str(tmp_path / "a.tar")) as sink:
        for n in range(1, 9):
            sink.write({"__key__": f"k{n}", "cls": n})

    def fragile(sample):
        if sample["cls"] == 5:
            raise OSError("damaged")
        return sample if sample["cls"] != 6 else None

    data = wds.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False).decode()
    options = {"len_key": "cls", "len_fn": None, "collate_fn": None, "sampler_kwargs": SIZES}
    options["prepare"] = fragile
    with pytest.raises(OSError, match="damaged") as caught:
        list(data.then(wds.dynamic_bucketed_batch, **options))
    assert "sample 'k5' at byte" in caught.value.__notes__[0]
    kept = data.then(wds.dynamic_bucketed_batch, handler=wds.ignore_and_continue, **options)
    assert sorted(s["cls"] for batch in kept for s in batch) == [1, 2, 3, 4, 7, 8]
    assert kept.skipped == {"dynamic_bucketed_batch": 2}


# ── samplers ────────────────────────────────────────────────────────────────────────────────────


def slowly(lengths, target, most, room, share, pivot):
    """What the reference says of the window, word by word, and without cleverness."""
    begin = end = pivot
    while end + 1 - begin < most and (end + 1 - begin) * lengths[end] < target:
        choices = []
        for place in (begin - 1, end + 1):
            if 0 <= place < len(lengths):
                low, high = min(begin, place), max(end, place)
                window = lengths[low : high + 1]
                ratio = wds.padding_ratio(window)
                if wds.total_length_with_padding(window) <= room and ratio <= share:
                    choices.append((ratio, place))
        if not choices:
            break
        begin, end = min(begin, min(choices)[1]), max(end, min(choices)[1])
    return list(range(begin, end + 1))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_the_window_around_a_pivot_is_the_one_described(data):
    lengths = sorted(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=60)))
    pivot = data.draw(st.integers(0, len(lengths) - 1))
    target = data.draw(st.integers(1, 300))
    most = data.draw(st.none() | st.integers(1, 20))
    room = data.draw(st.none() | st.integers(1, 400))
    share = data.draw(st.none() | st.sampled_from([0.0, 0.05, 0.2, 0.5]))
    found = wds.indices_around_random_pivot(
        [LengthItem(length, None, None) for length in lengths],
        target,
        most,
        room,
        share,
        randint_generator=lambda low, high: pivot,
    )
    wanted = slowly(
        lengths,
        target,
        len(lengths) if most is None else most,
        float("inf") if room is None else room,
        1.0 if share is None else share,
        pivot,
    )
    assert found == wanted


def test_a_generator_given_is_used_and_costs_the_exact_resume():
    drawn = []

    def randint(low, high):
        drawn.append(high)
        return low

    stage = wds.dynamic_bucketed_batch(
        "length",
        None,
        buffersize=10,
        collate_fn=None,
        sampler_kwargs={**SIZES, "randint_generator": randint},
    )
    pipeline = wds.DataPipeline(sounds([4] * 30), stage)
    assert sum(map(len, pipeline)) == 30
    assert drawn[0] == 9
    assert "cannot be saved" in pipeline.describe()


def test_a_sampler_of_ones_own_chooses_from_the_sorted_buffer():
    def two_shortest(databuffer, count):
        assert [item.length for item in databuffer] == sorted(item.length for item in databuffer)
        assert all(item.data["length"] == item.length for item in databuffer)
        return range(min(count, len(databuffer)))

    options = {"sampler_fn": two_shortest, "sampler_kwargs": {"count": 2}, "buffersize": 4}
    assert lengths_of(bucketed([3, 1, 4, 2], **options)) == [[2, 1], [4, 3]]


def test_a_sampler_that_chooses_nothing_is_an_error():
    with pytest.raises(wds.PipelineError, match="sampler_fn chose no sample"):
        list(bucketed([1], sampler_fn=lambda buffer: [], sampler_kwargs={}))


def test_lanes_share_the_buffer_and_a_share_that_is_too_small_is_told(tmp_path):
    with wds.ShardWriter(str(tmp_path / "%d.tar"), maxcount=50, verbose=0, index=True) as sink:
        for n in range(200):
            sink.write({"__key__": f"k{n}", "cls": n % 7 + 1})
    data = wds.WebDataset(str(tmp_path / "{0..3}.tar"), index=True, lanes=4, shardshuffle=2)
    data = data.decode().then(
        wds.dynamic_bucketed_batch,
        len_key="cls",
        len_fn=None,
        buffersize=100,
        collate_fn=None,
        sampler_kwargs=SIZES,
    )
    with pytest.warns(UserWarning, match="100 samples shared by 4 lanes is 25 in each"):
        keys = [sample["__key__"] for batch in data for sample in batch]
    assert sorted(keys) == sorted(f"k{n}" for n in range(200))


class Sample(dict):
    """One that can be asked whether it is still there."""


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sampler_kwargs": {**SIZES, "randint_generator": random.Random(0).randint}},
        {"sampler_fn": lambda buffer, **_: range(min(3, len(buffer)))},
    ],
)
def test_samples_that_were_given_are_not_kept(options):
    living = weakref.WeakSet()

    def source():
        for n in range(2000):
            sample = Sample(length=1 + n % 17)
            living.add(sample)
            yield sample

    Sample.__hash__ = object.__hash__
    options = {"len_key": "length", "len_fn": None, "sampler_kwargs": SIZES, **options}
    stage = wds.dynamic_bucketed_batch(source(), collate_fn=None, buffersize=50, **options)
    assert max(len(living) for _ in stage) < 50 + 2 * 60


def test_a_handler_that_stops_at_a_sample_that_cannot_be_prepared_ends_the_stream():
    read = []

    def source():
        for n in range(1000):
            read.append(n)
            yield {"length": 5, "n": n}

    def prepare(sample):
        if sample["n"] == 3:
            raise ValueError("damaged")
        return sample

    stage = wds.dynamic_bucketed_batch(
        len_key="length",
        len_fn=None,
        buffersize=20,
        collate_fn=None,
        sampler_kwargs=SIZES,
        prepare=prepare,
        handler=lambda error: False,
    )
    assert sum(map(len, stage(source()))) == len(read) - 1 < 100


# ── len_key on fields that are containers ───────────────────────────────────────────────────────


def by_len(values, **options):
    options = {"len_key": "x", "buffersize": 4, "sampler_kwargs": SIZES, **options}
    samples = [{"__key__": str(n), "x": value} for n, value in enumerate(values)]
    batches = wds.dynamic_bucketed_batch(samples, collate_fn=None, **options)
    return [[sample["__key__"] for sample in batch] for batch in batches]


def test_sound_next_to_its_rate_is_as_long_as_the_sound():
    torch = pytest.importorskip("torch")
    lengths = [10, 20, 30, 10, 20]
    alone = by_len([np.zeros(n) for n in lengths])
    assert alone == by_len([(torch.zeros(1, n), 8000) for n in lengths])  # as torch_audio decodes
    assert alone == by_len([[np.zeros((n, 2)), 8000] for n in lengths])
    assert alone == by_len([list(range(n)) for n in lengths])
    assert alone == by_len([tuple(range(n)) for n in lengths])
    assert max(map(len, alone)) < 5


def test_tensors_decoded_with_their_rate_are_put_into_batches_by_their_length(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("soundfile")
    with wds.TarWriter(f"{tmp_path}/a.tar") as writer:
        for number in range(40):
            sound = np.zeros(100 + 97 * number % 500, np.float32)
            writer.write({"__key__": f"k{number}", "wav": (sound, 8000)})
    data = wds.WebDataset(f"{tmp_path}/a.tar", shardshuffle=False).decode(wds.torch_audio)
    limits = {"target_batch_numel": 1000, "max_batch_numel": 1500}
    batches = data.dynamic_bucketed_batch("wav", collate_fn=None, sampler_kwargs=limits)
    for batch in batches:
        assert len(batch) * max(sample["wav"][0].shape[1] for sample in batch) <= 1500


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (b"RIFF....", "bytes"),
        ({"tokens": [1, 2]}, "dict"),
        ((np.zeros(5), np.zeros(3), {"rate": 8000}), "tuple with 2 arrays"),
    ],
)
def test_a_field_without_an_obvious_length_is_an_error_that_names_the_remedy(value, what):
    with pytest.raises(wds.SampleError, match=f"type {what} has no obvious length.*len_fn="):
        by_len([value])
    assert by_len([value], handler=wds.ignore_and_continue) == []
    assert by_len([value], len_fn=lambda value: 5) == [["0"]]
