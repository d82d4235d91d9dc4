from __future__ import annotations

import io
import pickle
import sys

import pytest

import penstock as wds

SAMPLES = [{"__key__": f"k{n}", "txt": "x" * 100} for n in range(6)]


def shown(samples, **options):
    stream = io.StringIO()
    assert list(wds.info(stream=stream, **options)(samples)) == list(samples)
    return stream.getvalue()


def test_the_first_samples_are_shown_field_by_field():
    assert shown(SAMPLES, n=2, width=5, name="look") == (
        "--- look\n__key__ 'k0'\ntxt 'xxxx\n--- look\n__key__ 'k1'\ntxt 'xxxx\n"
    )


def test_every_so_many_are_shown():
    assert shown(SAMPLES, n=0, every=3, fmt="{__key__}") == "k0\nk3\n"


def test_tuples_and_other_values_are_shown_too():
    assert shown([(1, "a")]) == "--- \n0 1\n1 'a'\n"
    assert shown([7]) == "--- \n0 7\n"
    assert shown(["word"]) == "--- \n0 'word'\n"
    assert shown([7], fmt="<{}>") == "<7>\n"


def test_it_goes_to_the_error_stream_by_default(capsys):
    list(wds.info(n=1)([{"a": 1}]))
    assert capsys.readouterr() == ("", "--- \na 1\n")


def test_it_travels_without_its_stream():
    for stage in (wds.info(stream=sys.stdout, n=1), wds.info(None, 1, -1, 50, sys.stdout)):
        assert repr(pickle.loads(pickle.dumps(stage))) == "info(n=1)"


def test_keys_are_logged_a_line_each(tmp_path, monkeypatch):
    log = tmp_path / "keys"
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    pipeline = wds.DataPipeline(lambda: iter([*SAMPLES[:2], (1,)]), wds.log_keys(str(log)))
    assert len(list(pipeline)) == 3
    list(pipeline)
    assert log.read_text() == "0\t0\t2\tk0\n1\t0\t2\tk1\n2\t0\t2\tNone\n" * 2


def test_without_a_file_nothing_is_logged():
    assert list(wds.log_keys()(SAMPLES)) == SAMPLES


def test_a_log_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(OSError, match="nothing"):
        list(wds.log_keys(str(tmp_path / "nothing" / "keys"))(SAMPLES))
