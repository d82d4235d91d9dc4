"""Whether two functions are the same code."""

from __future__ import annotations

import functools
import sys
import types

import pytest

import penstock as wds
from penstock.jobs.function_identity import identify

FIRST = """
LIMIT = 3

def helper(x):
    return x + 1

def work(x, extra=2):
    # a comment
    return helper(x) + LIMIT + extra

class Model:
    rate = 0.5
    def __init__(self):
        self.a = 1
    def __call__(self, x):
        return helper(x) * self.rate
"""


def load(text):
    """A module with that text; always of the same name."""
    module = types.ModuleType("changing_code")
    sys.modules["changing_code"] = module
    exec(compile(text, "changing_code.py", "exec"), module.__dict__)
    return module


def both(name, old, new):
    """The identities of a function before and after a change."""
    assert old in FIRST
    return (
        identify(getattr(load(FIRST), name)),
        identify(getattr(load(FIRST.replace(old, new)), name)),
    )


@pytest.mark.parametrize("name", ["work", "Model"])
def test_the_same_code_has_the_same_identity(name):
    before, after = both(name, "    # a comment\n", "\n\n    # another one\n")
    assert before == after


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("work", "+ LIMIT", "- LIMIT"),
        ("work", "LIMIT = 3", "LIMIT = 4"),
        ("work", "return x + 1", "return x + 2"),
        ("work", "extra=2", "extra=3"),
        ("Model", "rate = 0.5", "rate = 0.6"),
        ("Model", "* self.rate", "/ self.rate"),
        ("Model", "return x + 1", "return x + 2"),
        ("Model", "self.a = 1", "self.a = 2"),
    ],
)
def test_a_change_is_seen(name, old, new):
    before, after = both(name, old, new)
    assert before != after


def test_values_of_the_closure_and_of_partials_count():
    def make(n):
        return lambda x: x + n

    assert identify(make(1)) == identify(make(1)) != identify(make(2))
    module = load(FIRST)
    partials = [functools.partial(module.work, extra=n) for n in (1, 1, 2)]
    assert identify(partials[0]) == identify(partials[1]) != identify(partials[2])


def test_stages_of_a_pipeline_count():
    def pipeline(n, spec="pil"):
        return wds.DataPipeline(wds.decode(spec), wds.map(lambda x: n))

    assert identify(pipeline(1)) == identify(pipeline(1))
    assert identify(pipeline(1)) != identify(pipeline(2))
    assert identify(pipeline(1)) != identify(pipeline(1, "rgb"))


def test_functions_that_call_each_other_have_an_identity():
    module = load("def a(x):\n    return b(x)\n\ndef b(x):\n    return a(x)\n")
    assert identify(module.a) != identify(module.b)


def test_built_in_functions_have_an_identity():
    assert identify(len) != identify(sorted)
