"""Items: what they take and provide, in which order they are computed, and what goes wrong."""

from __future__ import annotations

import copy
import operator
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import DynamicItem, GeneratorDynamicItem, ItemPipeline, provides, takes
from penstock.errors import CircularDependencyError, PipelineError, UnknownKeyError


@takes("text")
@provides("words", "count")
def split(text):
    words = text.split()
    return words, len(words)


@takes("n")
@provides("half", ["low", "high"])
def halves(n):
    if n < 0:
        raise ArithmeticError("negative")
    yield n / 2
    if n == 13:
        raise ArithmeticError("thirteen")
    yield n - 1, n + 1


def test_decorators_may_stand_in_either_order():
    other = provides("words", "count")(takes("text")(lambda text: (text.split(), 1)))
    assert (other.takes, other.provides) == (split.takes, split.provides)


def test_an_item_is_still_called_like_its_function():
    assert split("a b") == (["a", "b"], 2)
    assert split.__name__ == "split"


def test_keys_named_twice_are_a_value_error():
    with pytest.raises(ValueError, match="already"):
        takes("more")(split)


def test_a_generator_function_becomes_a_generator_item():
    assert isinstance(halves, GeneratorDynamicItem)
    item = copy.copy(halves)
    assert item(4) == 2.0
    assert item() == (3, 5)
    with pytest.raises(RuntimeError):
        item()
    item.reset()
    assert item(8) == 4.0
    split.reset()  # so that a pipeline need not ask what kind an item is


def test_several_keys_come_from_one_call():
    pipeline = ItemPipeline(["text"], [split], ["count", "words"])
    assert pipeline({"text": "a b c"}) == {"count": 3, "words": ["a", "b", "c"]}


def test_items_may_be_added_before_what_they_depend_on():
    pipeline = ItemPipeline(["a", "b"])
    pipeline.add_dynamic_item(operator.neg, "sum", "minus")
    pipeline.add_dynamic_item(operator.add, ["a", "b"], "sum")
    pipeline.set_output_keys({"out": "minus"})
    assert pipeline.compute_outputs({"a": 1, "b": 2}) == {"out": -3}


def test_only_what_is_asked_for_is_computed():
    called = []
    pipeline = ItemPipeline(["x"], output_keys=["y"])
    pipeline.add_dynamic_item(lambda x: x + 1, "x", "y")
    pipeline.add_dynamic_item(called.append, "x", "never")
    assert pipeline({"x": 1}) == {"y": 2}
    assert called == []


def test_a_generator_runs_only_as_far_as_needed_and_is_closed():
    reached = []

    def steps(x):
        try:
            yield x
            reached.append("second")
            yield x
        finally:
            reached.append("closed")

    pipeline = ItemPipeline(["x"], [{"func": steps, "takes": "x", "provides": ["a", "b"]}], ["a"])
    assert pipeline({"x": 1}) == {"a": 1}
    assert reached == ["closed"]


@pytest.mark.parametrize("keys", [["half"], ["low"], ["high", "half"]])
def test_samples_after_one_that_fails_are_not_touched_by_it(keys):
    pipeline = ItemPipeline(["n"], [halves], keys)
    whole = {"half": 2.0, "low": 3, "high": 5}
    for bad in (-1, 13, 13, -1):
        if bad == -1 or keys != ["half"]:
            with pytest.raises(ArithmeticError):
                pipeline({"n": bad})
        assert pipeline({"n": 4}) == {key: whole[key] for key in keys}


def test_an_error_of_a_function_names_item_and_sample():
    pipeline = ItemPipeline(["id", "n"], [halves], ["half"])
    with pytest.raises(ArithmeticError) as caught:
        pipeline({"id": "utt7", "n": -1})
    assert "'halves'" in caught.value.__notes__[0]
    assert "'utt7'" in caught.value.__notes__[0]


def test_a_key_that_is_unaccounted_for_matters_only_when_it_is_needed():
    pipeline = ItemPipeline(["a"], output_keys=["a"])
    pipeline.add_dynamic_item(abs, "nowhere", "b")
    assert pipeline({"a": 1}) == {"a": 1}
    for kind in (UnknownKeyError, KeyError, RuntimeError):
        with pytest.raises(kind, match="nowhere"):
            pipeline.compute_specific(["b"], {"a": 1})


def test_a_sample_without_a_static_key_is_a_key_error_that_names_it():
    pipeline = ItemPipeline(["id", "a"], output_keys=["a"])
    with pytest.raises(KeyError, match=r"no 'a'.*utt3"):
        pipeline({"id": "utt3"})


def test_items_in_a_circle_are_told():
    pipeline = ItemPipeline([], output_keys=["a"])
    pipeline.add_dynamic_item(abs, "b", "a")
    pipeline.add_dynamic_item(abs, "a", "b")
    with pytest.raises(CircularDependencyError, match="cycle"):
        pipeline({})


def test_the_later_of_two_items_for_a_key_counts():
    pipeline = ItemPipeline(["a"], output_keys=["b"])
    pipeline.add_dynamic_item(lambda a: "first", "a", "b")
    assert pipeline({"a": 0}) == {"b": "first"}
    pipeline.add_dynamic_item(lambda a: "second", "a", "b")
    assert pipeline({"a": 0}) == {"b": "second"}


def test_the_data_itself_counts_more_than_an_item_and_that_is_told():
    pipeline = ItemPipeline(["a"], output_keys=["a"])
    with pytest.warns(UserWarning, match="in the data, which"):
        pipeline.add_dynamic_item(abs, "a", "a")
    assert pipeline({"a": -1}) == {"a": -1}


def test_specific_keys_leave_the_output_keys_alone():
    pipeline = ItemPipeline(["text"], [split], ["text"])
    assert pipeline.compute_specific(["count"], {"text": "a"}) == {"count": 1}
    assert pipeline({"text": "a"}) == {"text": "a"}


@pytest.mark.parametrize(
    ("function", "keys"),
    [(lambda a: 1, ["x", "y"]), (lambda a: (1, 2, 3), ["x", "y"])],
    ids=["too few", "too many"],
)
def test_a_wrong_number_of_values_is_told(function, keys):
    pipeline = ItemPipeline(["a"], output_keys=["x"])
    pipeline.add_dynamic_item(function, "a", keys)
    with pytest.raises(PipelineError, match="values for the keys"):
        pipeline({"a": 0})


def test_a_generator_that_ends_early_is_told():
    def once(a):
        yield a

    pipeline = ItemPipeline(["a"], output_keys=["y"])
    pipeline.add_dynamic_item(once, "a", ["x", "y"])
    with pytest.raises(PipelineError, match="yields 1 times"):
        pipeline({"a": 0})


def test_an_item_with_keys_of_its_own_takes_no_others():
    with pytest.raises(ValueError, match="has its own takes"):
        ItemPipeline(["text"]).add_dynamic_item(split, "text", "words")


def test_an_item_that_provides_nothing_is_refused():
    with pytest.raises(ValueError, match="provides no key"):
        ItemPipeline([]).add_dynamic_item(takes("a")(lambda a: a))


def test_a_decorated_function_pickles_by_its_name():
    assert pickle.loads(pickle.dumps(split)) is split
    again = pickle.loads(pickle.dumps(DynamicItem(["a"], abs, ["b"])))
    assert (again(-1), again.takes, again.provides) == (1, ["a"], ["b"])


def test_a_pipeline_pickles_and_computes_the_same():
    pipeline = ItemPipeline(["text"], [split], ["count"])
    pipeline({"text": "a"})
    assert pickle.loads(pickle.dumps(pipeline))({"text": "a b"}) == {"count": 2}


def test_a_copy_takes_other_items_and_keys():
    pipeline = ItemPipeline(["a"], output_keys=["a"])
    other = pipeline.copy()
    other.add_dynamic_item(abs, "a", "b")
    other.set_output_keys("b")
    assert other({"a": -2}) == {"b": 2}
    assert pipeline({"a": -2}) == {"a": -2}


@given(st.permutations(range(6)), st.sets(st.integers(0, 5), min_size=1))
def test_items_are_computed_in_an_order_that_works_however_they_were_added(order, wanted):
    computed = []

    def made(number):
        def function(before):
            computed.append(number)
            return before + 1

        return function

    pipeline = ItemPipeline(["k0"], output_keys=[f"k{n + 1}" for n in wanted])
    for number in order:
        pipeline.add_dynamic_item(made(number), f"k{number}", f"k{number + 1}")
    assert pipeline({"k0": 0}) == {f"k{n + 1}": n + 1 for n in wanted}
    assert computed == list(range(max(wanted) + 1))  # each once, and none beyond what is needed


def test_the_names_are_public():
    assert penstock.takes is takes
    assert penstock.provides is provides
