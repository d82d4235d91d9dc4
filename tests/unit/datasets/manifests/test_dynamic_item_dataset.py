"""Manifests as data sets: rows, items, choosing and sorting."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import DynamicItemDataset, FilteredSortedDynamicItemDataset
from penstock.datasets.manifests import columns
from penstock.errors import ManifestError, PipelineError, UnknownKeyError


def lengths(*numbers):
    return DynamicItemDataset({f"u{i}": {"n": n} for i, n in enumerate(numbers)}, output_keys=["n"])


def test_a_sample_has_the_output_keys_and_the_id_is_one():
    dataset = DynamicItemDataset({"a": {"x": 1, "y": "t"}}, output_keys=["id", "y"])
    assert dataset[0] == dataset[-1] == dataset[np.int64(0)] == {"id": "a", "y": "t"}
    assert len(dataset) == 1


def test_output_keys_may_be_renamed():
    dataset = DynamicItemDataset({"a": {"x": 1}}, output_keys={"out": "x"})
    assert dataset[0] == {"out": 1}
    dataset.set_output_keys(None)
    assert dataset[0] == {}


def test_what_the_caller_gave_is_never_changed():
    given_rows = {"a": {"x": 2}, "b": {"x": 1}}
    before = copy.deepcopy(given_rows)
    dataset = DynamicItemDataset(given_rows, output_keys=["x"])
    dataset.filtered_sorted(key_min_value={"x": 0}, sort_key="x")
    dataset.data["a"]["x"] = 99
    assert given_rows == before
    assert dataset[0] == {"x": 2}
    assert len(DynamicItemDataset(given_rows)) == 2


def test_the_rows_are_a_mapping_by_id():
    data = lengths(5, 3).data
    assert data["u1"] == {"n": 3}
    assert (list(data), len(data), "u0" in data, "x" in data, 0 in data) == (
        ["u0", "u1"], 2, True, False, False,
    )  # fmt: skip
    assert dict(data) == {"u0": {"n": 5}, "u1": {"n": 3}}
    with pytest.raises(KeyError, match="no row 'x'"):
        data["x"]


def test_ids_are_a_sequence_like_a_list():
    ids = lengths(1, 2, 3).data_ids
    assert ids == ["u0", "u1", "u2"]
    assert ids[-1] == "u2"
    assert ids[:2] == ["u0", "u1"]
    assert ids != ["u0"]


def test_ids_need_not_be_texts():
    dataset = DynamicItemDataset({3: {"x": 1}, ("a", 1): {"x": 2}}, output_keys=["id", "x"])
    assert dataset[1] == {"id": ("a", 1), "x": 2}
    assert dataset.data[3] == {"x": 1}


def test_a_key_only_later_rows_have_can_be_asked_for():
    dataset = DynamicItemDataset({"a": {"x": 1}, "b": {"x": 2, "y": 3}}, output_keys=["y"])
    assert dataset[1] == {"y": 3}
    with pytest.raises(KeyError, match=r"no 'y'.*'a'"):
        dataset[0]
    assert dataset.data["a"] == {"x": 1}
    assert np.isnan(dataset.column("y")[0])


def test_a_key_nobody_has_is_a_key_error_when_a_sample_is_asked_for():
    dataset = lengths(1)
    dataset.set_output_keys(["m"])
    with pytest.raises(UnknownKeyError, match=r"'m'.*keys: n, id"):
        dataset[0]


def test_a_row_with_the_key_id_is_refused():
    with pytest.raises(ValueError, match=r"'id' is reserved.*'b'"):
        DynamicItemDataset({"a": {"x": 1}, "b": {"id": 1}})


def test_a_row_that_is_no_dict_is_refused():
    with pytest.raises(ManifestError, match=r"not list .*'b'"):
        DynamicItemDataset({"a": {"x": 1}, "b": [1]})


def test_an_empty_manifest_is_an_empty_data_set():
    dataset = DynamicItemDataset({})
    assert len(dataset) == 0
    assert list(dataset) == []
    assert len(dataset.filtered_sorted(select_n=3)) == 0
    with pytest.raises(IndexError):
        dataset[0]


def test_a_number_out_of_range_is_an_index_error():
    for number in (2, -3):
        with pytest.raises(IndexError, match="has 2"):
            lengths(1, 2)[number]


def test_a_slice_is_a_data_set():
    part = lengths(1, 2, 3)[::-2]
    assert list(part) == [{"n": 3}, {"n": 1}]


def test_an_exception_leaves_no_temporary_output_keys():
    dataset = lengths(1)
    with pytest.raises(ZeroDivisionError), dataset.output_keys_as(["id"]):
        assert dataset[0] == {"id": "u0"}
        raise ZeroDivisionError
    assert dataset[0] == {"n": 1}


def test_iterating_once_computes_everything_and_keeps_nothing():
    dataset, seen = lengths(1, 2), []
    dataset.add_dynamic_item(seen.append, "n", "nothing")
    dataset.iterate_once()
    assert seen == []
    assert dataset.iterate_once(["nothing"]) is None
    assert seen == [1, 2]
    assert dataset[0] == {"n": 1}


def test_limits_hold_with_equality_and_tests_by_truth():
    dataset = lengths(1, 2, 3, 4)
    chosen = dataset.filtered_sorted({"n": 2}, {"n": 3})
    assert isinstance(chosen, FilteredSortedDynamicItemDataset)
    assert chosen.data_ids == ["u1", "u2"]
    assert dataset.filtered_sorted(key_test={"n": lambda n: n % 2}).data_ids == ["u0", "u2"]
    assert chosen.filtered_sorted(key_min_value={"n": 3}).data_ids == ["u2"]


def test_select_n_stops_first_and_sorts_then():
    assert lengths(3, 2, 1).filtered_sorted(sort_key="n", select_n=2).data_ids == ["u1", "u0"]
    assert len(lengths(1, 2).filtered_sorted(select_n=0)) == 0


def test_select_n_computes_no_more_samples_than_it_needs():
    dataset, seen = lengths(*range(100)), []
    dataset.add_dynamic_item(lambda n: seen.append(n) or n, "n", "m")
    assert len(dataset.filtered_sorted(key_min_value={"m": 0}, select_n=3)) == 3
    assert seen == [0, 1, 2]


def test_a_choice_has_items_and_keys_of_its_own():
    dataset = lengths(1, 2)
    chosen = dataset.filtered_sorted()
    chosen.add_dynamic_item(lambda n: -n, "n", "minus")
    chosen.set_output_keys(["minus"])
    assert chosen[0] == {"minus": -1}
    assert dataset[0] == {"n": 1}


def test_a_missing_value_is_told_with_its_sample_when_it_is_compared():
    dataset = DynamicItemDataset({"a": {"n": 1}, "b": {}})
    for options in ({"key_min_value": {"n": 0}}, {"sort_key": "n"}):
        with pytest.raises(KeyError, match="'b'"):
            dataset.filtered_sorted(**options)


def test_nan_passes_no_limit():
    assert lengths(1.0, float("nan"), 2.0).filtered_sorted({"n": 0}).data_ids == ["u0", "u2"]


@given(
    st.lists(st.integers(-3, 3) | st.sampled_from([0.5, -0.5]), max_size=20),
    st.booleans(),
    st.integers(-3, 3),
    st.none() | st.integers(0, 20),
    st.booleans(),
)
def test_choosing_and_sorting_equals_doing_it_row_by_row(numbers, reverse, low, limit, computed):
    dataset = lengths(*numbers)
    key = "n"
    if computed:
        dataset.add_dynamic_item(lambda n: n, "n", "m")
        key = "m"
    chosen = dataset.filtered_sorted({key: low}, {}, {}, key, reverse, limit)
    passing = [(n, i) for i, n in enumerate(numbers) if n >= low][:limit]
    assert chosen.data_ids == [f"u{i}" for n, i in sorted(passing, reverse=reverse)]


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from("xyz"),
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
            | st.lists(st.integers() | st.text(), max_size=3)
            | st.dictionaries(st.text(max_size=2), st.floats(allow_nan=False), max_size=2)
            | st.tuples(st.integers()) | st.binary(max_size=3),
        ),
        max_size=12,
    )
)  # fmt: skip
def test_every_value_comes_back_as_it_was(rows):
    given_rows = {f"r{i}": row for i, row in enumerate(rows)}
    for dataset in (
        DynamicItemDataset(given_rows),
        pickle.loads(pickle.dumps(DynamicItemDataset(given_rows))),
    ):
        back = dict(dataset.data)
        assert back == given_rows
        assert [[(k, type(v)) for k, v in sorted(row.items())] for row in back.values()] == [
            [(k, type(v)) for k, v in sorted(row.items())] for row in given_rows.values()
        ]


def test_columns_hold_over_the_border_of_their_parts():
    count = columns.PART + 5
    rows = {f"{i}": {"n": i} if i else {"n": i, "first": True} for i in range(count)}
    rows[f"{count - 1}"]["last"] = "x"
    dataset = DynamicItemDataset(rows)
    assert dataset.column("n").tolist() == list(range(count))
    assert dataset.data[f"{count - 1}"] == {"n": count - 1, "last": "x"}
    assert dataset.data["0"] == {"n": 0, "first": True}
    assert dataset.data[f"{columns.PART}"] == {"n": columns.PART}
    assert len(dataset.filtered_sorted({"n": columns.PART})) == 5


def test_a_column_of_numbers_is_an_array():
    assert lengths(1, 2).column("n").dtype == np.int64
    assert lengths(1, 2.5).column("n").tolist() == [1.0, 2.5]
    assert lengths(1.5, None).column("n")[0] == 1.5
    chosen = lengths(3, 1, 2).filtered_sorted(sort_key="n")
    assert chosen.column("n").tolist() == [1, 2, 3]
    assert chosen.column("id").tolist() == ["u1", "u2", "u0"]


def test_a_column_that_an_item_provides_is_computed():
    dataset = lengths(1, 2)
    dataset.add_dynamic_item(lambda n: n * 10, "n", "tens")
    assert dataset.column("tens").tolist() == [10, 20]


def test_other_objects_are_kept_as_they_are():
    thing = object()
    dataset = DynamicItemDataset({"a": {"x": thing, "y": np.float32(0.1)}}, output_keys=["x", "y"])
    assert dataset[0]["x"] is thing
    assert dataset[0]["y"] == np.float32(0.1)
    assert type(dataset[0]["y"]) is np.float32


def test_an_overfit_test_repeats_the_first_samples():
    again = lengths(1, 2, 3).overfit_test(2, 5)
    assert [sample["n"] for sample in again] == [1, 2, 1, 2, 1]
    assert penstock.apply_overfit_test(False, 2, 5, again) is again
    with pytest.raises(PipelineError):
        lengths(1).overfit_test(0, 5)


def test_shuffling_batches_keeps_runs_together_and_the_rest_last():
    torch = pytest.importorskip("torch")
    dataset = lengths(*range(11))
    torch.manual_seed(3)
    numbers = [sample["n"] for sample in dataset.batch_shuffle(3)]
    torch.manual_seed(3)
    expected = [3 * n + i for n in torch.randperm(3).tolist() for i in range(3)]
    assert numbers == [*expected, 9, 10]
    torch.manual_seed(3)
    assert penstock.batch_shuffle(list(range(11)), 3) == numbers


def test_a_choice_cannot_be_read_from_a_file():
    for name in ("from_json", "from_csv"):
        with pytest.raises(TypeError):
            getattr(FilteredSortedDynamicItemDataset, name)("x")


def test_a_choice_may_be_made_of_ids():
    dataset = FilteredSortedDynamicItemDataset(lengths(1, 2), ["u1", "u0", "u1"])
    assert [sample["n"] for sample in dataset] == [2, 1, 2]
    with pytest.raises(KeyError, match="'u9'"):
        FilteredSortedDynamicItemDataset(lengths(1), ["u9"])


def test_several_data_sets_get_one_item():
    both = [lengths(1), lengths(2)]
    penstock.add_dynamic_item(both, lambda n: -n, "n", "minus")
    penstock.set_output_keys(both, ["minus"])
    assert [dataset[0] for dataset in both] == [{"minus": -1}, {"minus": -2}]
