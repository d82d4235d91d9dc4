"""Finding the budget: the worst batches first, until memory is not enough."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import penstock as wds
from penstock.batches.analysis.peak_memory import resident_bytes, watch_memory
from penstock.errors import PipelineError, ran_out

LENGTHS = np.random.default_rng(0).uniform(1, 30, 1000).round(2)


class Device:
    """A simulated allocator: a step takes so much per padded second, and a fixed part."""

    def __init__(self, memory, cost=lambda n, t: n * t, error=MemoryError):
        self.memory, self.cost, self.error = memory, cost, error
        self.steps = []

    def __call__(self, rows):
        self.steps.append(rows)
        if self.cost(len(rows), LENGTHS[rows].max()) > self.memory:
            raise self.error


@pytest.mark.parametrize(("start", "memory"), [(40, 777), (500, 300), (500, 2000), (4000, 777)])
def test_the_budget_is_what_fits_less_a_margin(start, memory):
    device = Device(memory)
    report = wds.find_budget(device, wds.PlannedBatchSampler(LENGTHS, start), margin=0.1)
    assert 0.97 * memory <= report.passed <= memory * 1.03
    assert report.budget == pytest.approx(0.9 * report.passed)
    assert report.failed / report.passed <= 1.02
    plan = wds.plan_batches(LENGTHS, report.budget)
    assert plan.costs.max() <= memory
    assert len(report.trials) < 100


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_every_kind_of_memory_error_is_known(error):
    assert ran_out(error)
    report = wds.find_budget(Device(500, error=error), wds.plan_batches(LENGTHS, 300))
    assert report.failed is not None


def test_another_error_is_not_taken_for_want_of_memory():
    with pytest.raises(RuntimeError, match="shapes differ"):
        wds.find_budget(
            Device(100, error=RuntimeError("shapes differ")), wds.plan_batches(LENGTHS, 300)
        )
    with pytest.raises(ZeroDivisionError):
        wds.find_budget(lambda rows: 1 / 0, wds.plan_batches(LENGTHS, 300))


def test_memory_that_grows_by_another_rule_is_found_too():
    """The plan counts padded seconds, the step takes memory by the square of the length."""
    device = Device(40_000, cost=lambda n, t: n * t * t)
    report = wds.find_budget(device, wds.plan_batches(LENGTHS, 600), margin=0)
    for epoch in range(20):
        plan = wds.plan_batches(LENGTHS, report.budget, epoch=epoch)
        assert (plan.sizes * plan.lengths[:, 0] ** 2).max() <= 40_000


def test_where_nothing_fails_the_data_or_the_highest_is_the_limit():
    report = wds.find_budget(lambda rows: None, wds.plan_batches(LENGTHS, 600), highest=5000)
    assert (report.passed, report.failed) == (5000, None)
    report = wds.find_budget(lambda rows: None, wds.plan_batches([2.0] * 10, 4), margin=0)
    assert report.budget == 20


def test_an_example_that_does_not_fit_alone_is_told():
    with pytest.raises(PipelineError, match=r"even a budget of 29\.\S+ does not fit"):
        wds.find_budget(Device(20), wds.plan_batches(LENGTHS, 600))
    with pytest.raises(PipelineError, match="needs a plan that has batches"):
        wds.find_budget(Device(20), wds.plan_batches([], 600))
    with pytest.raises(PipelineError, match="the budget is a table"):
        wds.find_budget(Device(20), wds.plan_batches(LENGTHS, [(40, 4)]))


def test_the_batch_can_be_loaded_for_the_step():
    seen = []

    def step(batch):
        seen.append(batch.shape)
        if batch.nbytes > 80_000:
            raise MemoryError

    def load(rows):
        return np.zeros((len(rows), int(LENGTHS[rows].max() * 10)))

    report = wds.find_budget(step, wds.plan_batches(LENGTHS, 600), load=load)
    assert 900 < report.passed < 1100
    assert all(len(shape) == 2 for shape in seen)


def test_a_limit_on_the_process_is_measured_and_kept():
    """Real memory: the step holds ten kilobytes for each padded unit."""
    if resident_bytes() is None:
        pytest.skip("the system does not tell a process's memory")
    allowed = 60_000_000
    limit = resident_bytes() + allowed

    def step(rows):
        block = np.ones((len(rows), int(LENGTHS[rows].max() * 1250)))  # 10 000 bytes a unit
        block += 1

    plan = wds.plan_batches(LENGTHS, 2000)
    report = wds.find_budget(step, plan, memory_limit=limit, tolerance=0.1)
    assert report.failed is not None
    assert report.passed * 10_000 < 1.3 * allowed
    assert report.failed * 10_000 > 0.5 * allowed
    assert any("above the limit" in trial.error for trial in report.trials)


def test_the_peak_is_seen_though_it_is_over():
    with watch_memory() as peak:
        block = np.ones(8_000_000)
        del block
    assert peak.bytes >= 64_000_000


def test_the_report_tells_of_every_trial():
    report = wds.find_budget(Device(500), wds.plan_batches(LENGTHS, 300))
    text = str(report)
    assert text.count("\n") == len(report.trials) + 1
    assert "passed" in text
    assert "MemoryError" in text
    assert report.worst.cost <= 500
    assert report.outliers.examples == 1000
