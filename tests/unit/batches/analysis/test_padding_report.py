"""The report on padding, fill and mixing."""

from __future__ import annotations

import json
from collections import namedtuple
from itertools import combinations, pairwise
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import PipelineError, SampleError, padding_report, plan_batches
from penstock.batches.analysis.charts import histogram, schemes_svg
from penstock.batches.analysis.padding_report import PaddingReport, balance, compared

PaddedData = namedtuple("PaddedData", ["data", "lengths"])


def cut_at(order: list[int], cuts: list[int]) -> list[list[int]]:
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(order)}), len(order)]
    return [order[start:stop] for start, stop in pairwise(bounds)]


@st.composite
def epochs(draw: Any) -> tuple[list[float], list[list[int]], list[list[int]]]:
    """Lengths, and the same samples in batches twice."""
    lengths = draw(st.lists(st.integers(1, 20).map(float), min_size=2, max_size=30))
    orders = [draw(st.permutations(range(len(lengths)))) for _ in range(2)]
    cuts = [draw(st.lists(st.integers(1, 29), max_size=6)) for _ in range(2)]
    first, second = (cut_at(list(order), cut) for order, cut in zip(orders, cuts))
    return lengths, first, second


def pairs(batches: list[list[int]]) -> set[tuple[int, int]]:
    return {pair for batch in batches for pair in combinations(sorted(batch), 2)}


@given(epochs())
def test_the_figures_are_what_counting_gives(
    data: tuple[list[float], list[list[int]], list[list[int]]],
) -> None:
    lengths, first, second = data
    report = padding_report(first, lengths, budget=40, again=second)
    padded = [len(batch) * max(lengths[n] for n in batch) for batch in first]
    assert report.padding == pytest.approx(1 - sum(lengths) / sum(padded))
    assert report.fill == pytest.approx(sum(padded) / len(padded) / 40)
    assert report.over_budget == sum(size > 40 for size in padded)
    assert report.floor == max(1, -(-sum(lengths) // 40))
    assert report.batches == len(first)
    assert (report.smallest, report.largest) == (min(map(len, first)), max(map(len, first)))
    together = pairs(first)
    if together:
        assert report.rejoin == pytest.approx(len(together & pairs(second)) / len(together))
    else:
        assert report.rejoin is None


@given(epochs())
def test_spread_is_the_mean_distance_to_the_others_of_the_batch(
    data: tuple[list[float], list[list[int]], list[list[int]]],
) -> None:
    lengths, first, _ = data
    count = len(lengths)
    place = [
        sum(other < one for other in lengths) + sum(other == one for other in lengths) / 2
        for one in lengths
    ]
    distances = [
        np.mean([abs(place[n] - place[m]) / count for m in batch if m != n])
        for batch in first
        for n in batch
        if len(batch) > 1
    ]
    expected = float(np.mean(distances)) if distances else 0.0
    assert padding_report(first, lengths).spread == pytest.approx(expected, abs=1e-9)


def test_random_batches_have_a_spread_of_a_third_and_rarely_rejoin() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(2, 0.6, 4000)
    first, second = (rng.permutation(4000).reshape(-1, 20) for _ in range(2))
    report = padding_report(first, lengths, again=second)
    assert report.spread == pytest.approx(1 / 3, abs=0.02)
    assert report.rejoin == pytest.approx(19 / 3999, abs=0.002)
    same = padding_report(first, lengths, again=first)
    assert same.rejoin == 1


def test_a_sample_that_the_next_epoch_leaves_out_meets_nobody() -> None:
    report = padding_report([[0, 1, 2]], [1.0] * 3, again=[[0]])
    assert report.rejoin == 0


def test_a_sample_above_the_budget_is_named() -> None:
    report = padding_report([[2, 0], [1], [3]], [1, 30, 2, 40], budget=10)
    assert (report.over_budget, report.outlier_count, report.outliers) == (2, 2, [1, 3])
    assert "2 batches, 2 of them for one long sample: 1, 3" in str(report)


def test_ranks_wait_for_the_costliest_batch_of_a_step() -> None:
    batches, lengths = [[0], [1], [2], [3], [4]], [1, 3, 2, 2, 5]
    report = padding_report(batches, lengths, ranks=2)
    assert (report.steps, report.ranks) == (3, 2)
    assert report.balance == pytest.approx((2 + 2 + 2.5) / (3 + 2 + 5))
    quadratic = padding_report(batches, lengths, ranks=2, cost=lambda n, t: n * t * t)
    assert quadratic.balance == pytest.approx((5 + 4 + 12.5) / (9 + 4 + 25))
    assert quadratic.costliest == 25
    assert balance(np.ones(3), 8) == pytest.approx(3 / 8)  # more ranks than batches
    assert "balance, 2 ranks" in str(report)


def test_repeated_samples_are_counted() -> None:
    assert padding_report([[0, 1], [1, 2]], [1, 1, 1]).repeated == 1
    assert padding_report([[0, 1], [2]], [1, 1, 1]).repeated == 0


def test_a_sampler_with_epochs_is_asked_for_the_next_and_left_as_it_was() -> None:
    class Turning:
        """Every epoch begins elsewhere."""

        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Any:
            order = np.roll(np.arange(12), self.epoch)
            return iter(order.reshape(4, 3).tolist())

    sampler = Turning()
    report = padding_report(sampler, [1.0] * 12)
    assert report.rejoin == pytest.approx(1 / 3)
    assert sampler.epoch == 0


def test_a_sampler_that_knows_its_lengths_needs_nothing_else() -> None:
    pytest.importorskip("torch")
    from penstock import DynamicBatchSampler

    lengths = [float(1 + n % 13) for n in range(500)]
    sampler = DynamicBatchSampler(range(500), 60, 30, lengths_list=lengths)
    running = iter(sampler)
    next(running)
    before = sampler.state_dict()
    report = padding_report(sampler)
    assert sampler.state_dict() == before
    assert (report.budget, report.samples) == (60, 500)
    assert report.rejoin is not None
    assert report.batches == len(sampler)


def test_a_plan_with_few_shapes_is_padded_to_them() -> None:
    lengths = np.random.default_rng(0).uniform(1, 30, 500)
    plan = plan_batches(lengths, 100, shapes=3)
    report = padding_report(plan, lengths)
    assert report.padding == pytest.approx(plan.padding)
    assert (report.budget, report.shapes) == (100, len(np.unique(plan.lengths)))


def test_batches_of_a_loader_tell_their_lengths() -> None:
    class Padded:
        """Like a padded batch: attributes, and values when iterated."""

        def __init__(self, lengths: list[int]) -> None:
            top = max(lengths)
            relative = np.array([length / top for length in lengths], np.float32)
            self.wav = PaddedData(np.zeros((len(lengths), top)), relative)

        def __iter__(self) -> Any:
            return iter([["id"], self.wav])

        def at_position(self, place: int) -> Any:
            return list(self)[place]

    expected = padding_report([[0, 1], [2]], [30_000, 77_777, 5])
    loader = [Padded([30_000, 77_777]), Padded([5])]
    assert padding_report(loader).as_dict() == {**expected.as_dict(), "repeated": None}
    by_name = [{"lengths": [30_000, 77_777], "wav": None}, {"lengths": np.array([5])}]
    assert padding_report(by_name).padding == expected.padding
    with_data = [{"wav": batch.wav, "cls": [1]} for batch in loader]
    assert padding_report(with_data).padding == expected.padding
    tuples = [(batch.wav, None) for batch in loader]
    assert padding_report(tuples).padding == expected.padding
    texts = [["a" * 30_000, "b" * 77_777], ["ccccc"]]
    measured = padding_report(texts, lengths=lambda batch: [len(text) for text in batch])
    assert measured.padding == expected.padding


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf"), 0, -1])
def test_a_length_that_is_none_is_an_error(bad: Any) -> None:
    with pytest.raises(SampleError, match="sample 1 has"):
        padding_report([[0], [1]], [1, bad])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [1.0]), "no batches"),
        (([[0, 7]], [1.0, 2.0]), "sample 7, and there are lengths of 2"),
        (([["a"]], [1.0]), "batches of sample numbers"),
        (([object()],), "no lengths of its samples"),
        (([[0]], [1.0], 1, {"ranks": 0}), "at least 1 rank"),
    ],
)
def test_what_cannot_be_reported_on_is_told(arguments: Any, message: str) -> None:
    more = arguments[3] if len(arguments) > 3 else {}
    with pytest.raises(PipelineError, match=message):
        padding_report(*arguments[:3], **more)


def example(name: str = "mine & yours") -> PaddingReport:
    return padding_report([[0, 1], [2]], [1, 2, 3], budget=4, ranks=1, name=name)


def test_it_comes_as_json_and_as_text() -> None:
    report = example()
    figures = json.loads(report.to_json())
    assert figures == report.as_dict()
    assert {"padding", "fill", "batches", "floor", "rejoin", "spread"} <= set(figures)
    assert str(report).splitlines()[0] == "mine & yours"
    assert compared([report, example("b")]).count("\n") == 2


def test_it_comes_as_a_drawing_that_is_well_formed() -> None:
    for drawing in (example().to_svg(), schemes_svg([example("a<b"), example("c")])):
        root = ElementTree.fromstring(drawing)
        assert root.tag.endswith("svg")
        assert len(root.findall(".//{*}rect")) > 4
        assert "NaN" not in drawing
        assert "nan" not in drawing


def test_a_histogram_counts_every_value() -> None:
    lines = histogram([1.0] * 5 + [2.0] * 3 + [10.0], rows=3, width=10)
    assert [int(line.split()[-1]) for line in lines] == [8, 0, 1]
    assert histogram([4.0])[0]  # one value alone


def test_a_loader_of_padded_batches_is_reported_on_like_its_sampler() -> None:
    torch = pytest.importorskip("torch")
    from penstock import DynamicBatchSampler, DynamicItemDataset, make_dataloader

    rows = {f"u{n}": {"frames": 10 + n * 7 % 90} for n in range(200)}
    data = DynamicItemDataset(rows)
    data.add_dynamic_item(lambda frames: torch.ones(frames), takes="frames", provides="sig")
    data.set_output_keys(["id", "sig"])
    sampler = DynamicBatchSampler(data, 400, 20, "frames")
    expected = padding_report(sampler).as_dict()
    found = padding_report(make_dataloader(data, batch_sampler=sampler), budget=400).as_dict()
    assert found == {**expected, "rejoin": None, "repeated": None}
