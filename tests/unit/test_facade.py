"""What ``import penstock`` shows, and what it does not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

import penstock


def run(code: str, **options) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_is_what_is_visible():
    assert set(dir(penstock)) == {*penstock.__all__, "__version__"}
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None, name
        assert not name.startswith("_")


def test_every_public_name_has_a_docstring():
    bare = (int, float, str, dict, list, tuple)
    for name in penstock.__all__:
        value = getattr(penstock, name)
        assert isinstance(value, bare) or value.__doc__, name


def test_an_unknown_name_is_told():
    with pytest.raises(AttributeError, match="no attribute 'shuffel'"):
        penstock.shuffel


def test_importing_penstock_loads_neither_numpy_nor_torch():
    code = "import sys, penstock; print(sorted({'numpy', 'torch'} & set(sys.modules)))"
    assert run(code).strip() == "[]"


def test_building_a_pipeline_does_not_load_torch():
    code = (
        "import sys, penstock as wds\n"
        "wds.WebDataset('x-{0..9}.tar').shuffle(10).decode().to_tuple('a', 'b').batched(4)\n"
        "print(sorted({'torch'} & set(sys.modules)))"
    )
    assert run(code).strip() == "[]"


def test_torch_may_be_imported_after_a_mix_was_made():
    code = (
        "import penstock as wds\n"
        "mix = wds.RandomMix([[1], [2]], longest=True)\n"
        "import torch.utils.data as data\n"
        "print(isinstance(mix, data.IterableDataset), isinstance(mix, data.Dataset))\n"
        "print(sorted(int(n) for n in data.DataLoader(mix, batch_size=None)))"
    )
    assert run(code).split("\n")[:2] == ["True True", "[1, 2]"]


def test_torch_may_be_imported_after_the_pipeline_was_made():
    code = (
        "import penstock as wds\n"
        "dataset = wds.DataPipeline(range(4)).with_length(4)\n"
        "import torch.utils.data as data\n"
        "print(isinstance(dataset, data.IterableDataset), isinstance(dataset, data.Dataset))\n"
        "print([int(n) for n in data.DataLoader(dataset, batch_size=None)])"
    )
    assert run(code).split("\n")[:2] == ["True True", "[0, 1, 2, 3]"]


def test_everything_but_the_loader_works_without_torch(tmp_path):
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "import penstock as wds\n"
        "with wds.TarWriter('x.tar') as sink:\n"
        "    for n in range(4):\n"
        "        sink.write({'__key__': str(n), 'cls': n, 'txt': 'x'})\n"
        "dataset = wds.WebDataset('x.tar').shuffle(9).decode('rgb').to_tuple('cls', 'txt')\n"
        "print(sorted(int(n) for batch in dataset.batched(2) for n in batch[0]))"
    )
    assert run(code, cwd=tmp_path).strip() == "[0, 1, 2, 3]"
