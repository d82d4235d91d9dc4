"""The fluent method and the stage of one name are one definition."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as wds
from penstock.pipeline.fluent import METHODS, Fluent

ROOT = Path(__file__).parents[3]


def test_every_method_is_in_the_table():
    methods = {name for name, value in vars(Fluent).items() if inspect.isfunction(value)}
    assert methods - {"compose", "batch"} == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_method_and_stage_take_the_same_and_say_the_same(name):
    method, stage = getattr(Fluent, name), METHODS[name]
    ours = list(inspect.signature(method).parameters.values())[1:]
    theirs = list(inspect.signature(stage.__init__).parameters.values())[1:]
    assert [(p.name, p.kind, p.default) for p in ours] == [
        (p.name, p.kind, p.default) for p in theirs
    ]
    assert inspect.getdoc(method) == inspect.cleandoc(stage.__doc__)


ARGUMENTS = {
    "map": (str,), "select": (bool,), "associate": ({},), "map_dict": {"cls": int},
    "rename": {"a": "b"}, "rename_keys": {"a": "*b"}, "slice": (3,), "to_tuple": ("a", "b"),
    "lmdb_cached": ("folder",), "dbcache": ("file", 10), "packed": (8,),
    "interleaved_to_dict": ("jpg",),
    "dynamic_bucketed_batch": ("txt", len, None, None, 9, None, None, {"target_batch_numel": 5}),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_the_method_appends_the_stage(name):
    given = ARGUMENTS.get(name, ())
    args, kwargs = ((), given) if isinstance(given, dict) else (given, {})
    dataset = getattr(wds.DataPipeline(range(3)), name)(*args, **kwargs)
    assert dataset.pipeline[-1] == METHODS[name](*args, **kwargs)
    assert isinstance(dataset, wds.DataPipeline)


def test_every_stage_that_takes_samples_has_a_method():
    exempt = {
        "tarfile_to_samples", "cbors_to_samples", "msgpacks_to_samples",  # they take shards
        "resampled", "repeat", "Stage",  # repeat is a method of the pipeline itself
        "to_device",  # of loaders
    }  # fmt: skip
    stages = {
        name
        for name in wds.__all__
        if inspect.isclass(value := getattr(wds, name))
        and issubclass(value, wds.Stage)
        and not issubclass(value, wds.SimpleShardList.__mro__[1])
    }
    covered = {METHODS[name].__name__ for name in METHODS}
    assert stages - exempt == covered - {"documents"}  # penstock.documents is its module


@pytest.mark.parametrize("tool", ["make_fluent.py", "make_facade.py"])
def test_the_generated_files_are_fresh(tool):
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / tool), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
