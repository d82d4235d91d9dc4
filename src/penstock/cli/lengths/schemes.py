"""The ways to batch that ``penstock lengths`` compares."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from penstock.batches.analysis.padding_report import PaddingReport, padding_report
from penstock.batches.lengths import Floats
from penstock.batches.planning.batch_plan import plan_batches
from penstock.batches.planning.cost import Cost
from penstock.batches.planning.length_pools import cut
from penstock.cli.progress import track
from penstock.datasets.samplers.dynamic_batch import DynamicBatchSampler
from penstock.errors import MissingPackage

Scheme = Callable[[int], Iterable[Any]]
"""Epoch → its batches."""


def reports_on(
    lengths: Floats, budget: float, *, buckets: int, seed: int, ranks: int | None
) -> tuple[list[PaddingReport], list[str]]:
    """Return a report on each scheme, and why others could not be tried."""
    schemes: dict[str, Scheme] = {
        "fixed": lambda epoch: fixed(lengths, budget, seed, epoch),
        "sorted": lambda epoch: in_order_of_length(lengths, budget),
        f"{buckets} buckets": lambda epoch: in_buckets(lengths, budget, buckets, seed, epoch),
        "planned": lambda epoch: plan_batches(
            lengths, budget, seed=seed, epoch=epoch, ranks=ranks or 1
        ),
    }
    reports, left_out = [], []
    for name, scheme in track(schemes.items(), "Comparing", unit="schemes"):
        try:
            first, again = list(scheme(0)), list(scheme(1))
        except MissingPackage as error:
            left_out.append(f"The scheme with {name} is left out: {error}.")
            continue
        reports.append(padding_report(first, lengths, budget, again=again, ranks=ranks, name=name))
    return reports, left_out


def fixed(lengths: Floats, budget: float, seed: int, epoch: int) -> list[Any]:
    """Return batches of equal size in random order, small enough for the longest samples."""
    size = max(1, int(budget / lengths.max()))
    order = np.random.default_rng([seed, epoch]).permutation(len(lengths))
    return [order[start : start + size] for start in range(0, len(order), size)]


def in_order_of_length(lengths: Floats, budget: float) -> list[Any]:
    """Return batches in order of length: the least padding, the same batches in every epoch."""
    order = np.argsort(lengths, kind="stable")
    return np.split(order, cut(lengths[order][:, None], Cost(None), budget, None)[1:-1])


def in_buckets(lengths: Floats, budget: float, buckets: int, seed: int, epoch: int) -> list[Any]:
    """Return batches by SpeechBrain's buckets."""
    sampler = DynamicBatchSampler(
        lengths, budget, buckets, lengths_list=lengths, seed=seed, epoch=epoch
    )
    return list(sampler)
