"""Random pipelines keep the promises about order and state, on every engine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as wds
from oracle.__main__ import describe
from oracle.cases import Case, make_case, make_dataset
from oracle.functions import write_data
from oracle.judge import Wrong, judge, smaller
from oracle.model import Known
from oracle.pinned import PINNED
from oracle.processes import Hung, Raised, in_new_process
from oracle.trainer import rows_after
from penstock.stages.sources.mix import Mix
from penstock.stages.stage import Stage
from waiting import is_running, wait_until

PARTS = 4
"""Tests that share the random cases, so that pytest-xdist can run them side by side."""
NOT_GENERATED = {
    wds.Stage: "the base class",
    wds.MapSamples: "it is IndexedSamples over other data: tests/state/test_map_samples_resume.py",
    wds.DirectoryShardList: "other processes fill and empty its folder: there is no order to keep",
}


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("oracle")
    write_data(folder)
    return folder


def check(given: int | Case, data: Path) -> None:
    case = make_case(given) if isinstance(given, int) else given
    try:
        judge(case, data)
    except Wrong as error:
        pytest.fail(f"{error}\n{describe(given, case)}", pytrace=False)


@pytest.mark.parametrize("name", PINNED)
def test_case_that_failed_once_passes(name, data):
    check(PINNED[name], data)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_cases_pass(part, data, pytestconfig):
    end = time.monotonic() + pytestconfig.getoption("oracle_seconds") / PARTS
    number = part
    while time.monotonic() < end:
        check(number, data)
        number += PARTS


def kinds_in(stages: list[Any]) -> Iterator[type]:
    """The classes of all stages, also of those in nested pipelines."""
    for stage in stages:
        yield type(stage)
        if isinstance(stage, wds.DataPipeline):
            yield from kinds_in(stage.pipeline)
        elif isinstance(stage, Mix):
            yield from kinds_in(stage.datasets)


def test_every_public_stage_is_generated():
    public = [getattr(wds, name) for name in wds.__all__]
    wanted = {type(stage) for stage in public if isinstance(stage, Stage)}
    wanted |= {kind for kind in public if isinstance(kind, type) and issubclass(kind, Stage)}
    wanted -= set(NOT_GENERATED)
    for number in range(5000):
        case = make_case(number)
        wanted -= set(kinds_in([make_dataset(case, Path()), *rows_after(case)]))
        if not wanted:
            return
    pytest.fail(f"add these to tests/oracle/stages.py or cases.py: {sorted(map(str, wanted))}")


def test_integer_makes_the_same_case_in_every_process():
    for number in range(20):
        assert str(in_new_process(make_case, number)) == str(make_case(number))


def test_text_has_other_hashes_in_processes_of_another_seed():
    assert in_new_process(hash, "s0001", hash_seed=1) != in_new_process(hash, "s0001", hash_seed=2)


def test_case_survives_its_json_text():
    for number in range(50):
        assert Case.parse(str(make_case(number))) == make_case(number)


def test_smaller_cases_can_be_built():
    for number in range(30):
        for case in smaller(make_case(number)):
            make_dataset(case, Path())


@pytest.mark.parametrize("grade", ["order", "bag", "flat", "some"])
def test_model_finds_what_its_grade_promises(grade):
    known = Known([(1, 2), (3,)], grade)
    assert known.problem([(1, 2), (3,)]) is None
    assert known.problem([(1, 2), (3,), (4,)])
    assert bool(known.problem([(1, 2)])) == (grade != "some")
    assert bool(known.problem([(1,), (2, 3)])) == (grade in ("order", "bag"))
    assert bool(known.problem([(3,), (1, 2)])) == (grade == "order")


def test_process_that_hangs_is_killed_with_its_children(tmp_path):
    with pytest.raises(Hung, match="within 2 s"):
        in_new_process(hang, tmp_path / "child", limit_s=2)
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: not is_running(child), "the child is killed")


def hang(path: Path) -> None:
    child = os.fork()
    if child:
        path.write_text(str(child))
    signal.pause()


def test_process_that_dies_is_reported():
    with pytest.raises(Raised, match="exit code 3"):
        in_new_process(os._exit, 3)
