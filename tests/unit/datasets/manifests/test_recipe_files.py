"""What recipes do to files before training."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from penstock.datasets.manifests import recipe_files as preparing
from penstock.errors import ManifestError, UnsafeError, WriteError


def test_a_manifest_comes_as_a_dict_of_rows(tmp_path):
    (tmp_path / "a.json").write_text('{"u1": {"wav": "{root}/1.wav", "n": 1}, "u2": {"n": 2}}')
    rows = preparing.load_data_json(tmp_path / "a.json", {"root": "/data"})
    assert rows == {"u1": {"wav": "/data/1.wav", "n": 1}, "u2": {"n": 2}}
    (tmp_path / "a.csv").write_text("ID, duration, wav, spk\nu1, 1.5, $root/1.wav, 7\n")
    rows = preparing.load_data_csv(tmp_path / "a.csv", {"root": "/data"}, {"spk": int})
    assert rows == {"u1": {"duration": 1.5, "wav": "/data/1.wav", "spk": 7}}


def test_a_column_of_a_table_is_a_list(tmp_path):
    (tmp_path / "a.csv").write_text("ID, spk\nu1, ada\nu2, bob\n")
    assert preparing.get_list_from_csv(tmp_path / "a.csv", "spk") == ["ada", "bob"]
    with pytest.raises(KeyError, match="no column 'wav'"):
        preparing.get_list_from_csv(tmp_path / "a.csv", "wav")


def test_tables_are_merged_also_where_one_ends_without_a_newline(tmp_path):
    (tmp_path / "a.csv").write_text("ID,text\nu1,one\u2028two")
    (tmp_path / "b.csv").write_text('ID,text\r\nu2,"a\r\nb"\r\n', newline="")
    (tmp_path / "c.csv").write_text("ID,text\n")
    preparing.merge_csvs(tmp_path, ["a.csv", "b.csv", "c.csv"], "all.csv")
    merged = (tmp_path / "all.csv").read_bytes().decode()
    assert merged == 'ID,text\nu1,one\u2028two\nu2,"a\r\nb"\r\n'
    (tmp_path / "d.csv").write_text("ID,wav\n")
    with pytest.raises(ManifestError, match=r"same header: a.csv has 'ID,text' and d.csv has"):
        preparing.merge_csvs(tmp_path, ["a.csv", "d.csv"], "all.csv")


def test_a_pickle_holds_plain_values_and_cannot_run_code(tmp_path):
    path = tmp_path / "conf.pkl"
    preparing.save_pkl({"splits": ["train"], "mean": np.ones(2)}, path)
    assert preparing.load_pkl(path)["splits"] == ["train"]
    with pytest.raises(WriteError, match=r"plain values, arrays and tensors.*conf.pkl"):
        preparing.save_pkl(print, path)
    assert preparing.load_pkl(path)["mean"].tolist() == [1, 1]
    path.write_bytes(pickle.dumps(print))
    with pytest.raises(UnsafeError, match=r"builtins.print.*conf.pkl"):
        preparing.load_pkl(path)


def test_checksums_are_saved_by_name(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    preparing.save_md5([str(tmp_path / "a")], tmp_path / "md5.pkl")
    found = preparing.load_pkl(tmp_path / "md5.pkl")
    assert found == {str(tmp_path / "a"): "900150983cd24fb0d6963f7d28e17f72"}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["a/1.txt", "a/1.wav", "b/1.wav", "b/2.wav"]),
        ({"match_and": ["1", ".wav"]}, ["a/1.wav", "b/1.wav"]),
        ({"match_or": ["2", ".txt"]}, ["a/1.txt", "b/2.wav"]),
        ({"exclude_and": ["b/", "1"]}, ["a/1.txt", "a/1.wav", "b/2.wav"]),
        ({"exclude_or": ["b/", ".txt"]}, ["a/1.wav"]),
        ({"match_and": [".wav"], "exclude_or": ["2"]}, ["a/1.wav", "b/1.wav"]),
    ],
)
def test_files_are_found_by_parts_of_their_paths(tmp_path, monkeypatch, options, names):
    monkeypatch.chdir(tmp_path)
    for name in ("a/1.wav", "a/1.txt", "b/1.wav", "b/2.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert preparing.get_all_files(".", **options) == [f"./{name}" for name in names]
    with pytest.raises(FileNotFoundError):
        preparing.get_all_files("none")
