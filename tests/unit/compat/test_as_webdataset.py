"""Programs that import ``webdataset`` run with penstock after ``install_as_webdataset()``."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

INSTALL = "import penstock; penstock.install_as_webdataset()\n"


def run(code, **variables):
    """Run a program in a new process; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def upstream(tmp_path):
    """A folder on the path with a package ``webdataset`` that is not penstock."""
    package = tmp_path / "site" / "webdataset"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '0.2.86'\nfrom . import filters\n")
    (package / "filters.py").write_text("")
    return str(package.parent)


def test_submodules_are_the_same_objects_however_they_are_imported():
    run(
        INSTALL
        + """
import importlib, sys
import webdataset
import webdataset.tariterators
import webdataset.gopen as opener
from webdataset import filters, handlers, gopen
from webdataset.gopen import rewrite_url
from webdataset.filters import _shuffle
from penstock.compat import SUBMODULES
for name in sorted(SUBMODULES):
    theirs = importlib.import_module(f"webdataset.{name}")
    assert theirs is importlib.import_module(f"penstock.{name}"), name
    assert theirs is getattr(webdataset, name), name
    assert sys.modules[f"webdataset.{name}"] is theirs
    assert theirs.__name__.startswith("penstock."), theirs.__name__
    assert theirs.__spec__.name == theirs.__name__
for name in penstock.__all__:
    assert getattr(webdataset, name) is getattr(penstock, name), name
assert callable(webdataset.gopen) and webdataset.gopen is gopen is opener
assert webdataset.tariterators.gopen.gopen is opener.gopen
penstock.install_as_webdataset()
assert sys.modules["webdataset"] is webdataset
"""
    )


def test_all_names_can_be_imported_at_once_and_missing_ones_fail_as_usual():
    code = """
    from webdataset import *
    assert WebDataset is penstock.WebDataset
    for name in ("nonsense", "loaders", "jobs"):
        try:
            __import__("webdataset." + name)
        except ModuleNotFoundError as error:
            print(error)
    try:
        import webdataset
        webdataset.nonsense
    except AttributeError as error:
        print("no attribute" in str(error))
    """
    printed = run(INSTALL + textwrap.dedent(code)).splitlines()
    assert printed == [
        *(f"No module named 'webdataset.{name}'" for name in ("nonsense", "loaders", "jobs")),
        "True",
    ]


def test_the_version_is_the_one_of_webdataset(upstream):
    code = INSTALL + (
        "import webdataset, importlib.metadata, importlib.util\n"
        "assert importlib.util.find_spec('webdataset').name == 'webdataset'\n"
        "assert importlib.util.find_spec('webdataset.filters') is not None\n"
        "assert 'webdataset' in [d.metadata['Name'] for d in importlib.metadata.distributions()]\n"
        "print(webdataset.__version__, importlib.metadata.version('webdataset'),\n"
        "      importlib.metadata.version('numpy') != '', penstock.__version__)\n"
    )
    from penstock import __version__

    expected = f"1.0.2 1.0.2 True {__version__}"
    assert run(code) == expected
    path = os.pathsep.join([upstream, *filter(None, sys.path)])
    assert run(code, PYTHONPATH=path) == expected  # also where WebDataset is installed


@pytest.mark.parametrize("first", ["import webdataset", "from webdataset import filters"])
def test_it_is_an_error_after_webdataset_was_imported(upstream, first):
    code = f"""
    {first}
    import penstock
    try:
        penstock.install_as_webdataset()
    except penstock.PipelineError as error:
        print(error)
    import webdataset
    assert webdataset.__version__ == "0.2.86"
    """
    printed = run(code, PYTHONPATH=os.pathsep.join([upstream, *filter(None, sys.path)]))
    assert upstream in printed
    assert "before other imports" in printed


def test_functions_assigned_to_modules_of_webdataset_are_used():
    code = """
    import io, sys, webdataset
    sys.modules["webdataset.gopen"].gopen = lambda url, **kw: io.BytesIO(b"\\0" * 10240)
    webdataset.tariterators.group_by_keys = lambda data, handler: iter([{"__key__": "mine"}])
    urls = webdataset.SimpleShardList("a.tar")
    print(list(webdataset.DataPipeline(urls, webdataset.tarfile_to_samples())))
    """
    assert run(INSTALL + textwrap.dedent(code)) == "[{'__key__': 'mine'}]"


def test_spawned_processes_have_it_through_sitecustomize(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(INSTALL)
    (tmp_path / "program.py").write_text(
        textwrap.dedent(
            """
            import multiprocessing
            import webdataset
            from webdataset.filters import _shuffle

            def version(_):
                return webdataset.__version__, webdataset.WebDataset.__module__

            if __name__ == "__main__":
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    print(*pool.map(version, [0])[0])
            """
        )
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    printed = run(
        "import runpy; runpy.run_module('program', run_name='__main__', alter_sys=True)",
        PYTHONPATH=path,
    )
    assert printed == "1.0.2 penstock.pipeline.webdataset"


PROGRAMS = {
    "timm": """
        from webdataset.filters import _shuffle, getfirst
        from webdataset.shardlists import expand_urls
        from webdataset.tariterators import base_plus_ext, url_opener, tar_file_expander
        from webdataset.tariterators import valid_sample
        wds.PipelineStage, wds.SimpleShardList, wds.tarfile_to_samples, wds.DataPipeline
        wds.shuffle, wds.map, wds.rename, wds.utils.pytorch_worker_seed, wds.gopen
        wds.shardlists.expand_urls""",
    "open_clip": """
        from webdataset.filters import _shuffle
        from webdataset.tariterators import base_plus_ext, url_opener, tar_file_expander
        from webdataset.tariterators import valid_sample
        wds.SimpleShardList, wds.split_by_node, wds.split_by_worker, wds.tarfile_to_samples
        wds.select, wds.decode, wds.rename, wds.map_dict, wds.to_tuple, wds.batched, wds.WebLoader
        wds.PipelineStage, wds.DataPipeline, wds.utils.pytorch_worker_seed""",
    "Energon": """
        import webdataset
        handlers = [webdataset.autodecode.imagehandler("pilrgb"), lambda key, data: None]
        decoder = webdataset.autodecode.Decoder(handlers)
        assert decoder({"__key__": "a", "json": b"[1]"})["json"] == [1]
        webdataset.torch_audio, webdataset.torch_video, webdataset.ShardWriter""",
    "NeMo": """
        import webdataset as wd
        webdataset = wd
        webdataset.tariterators.url_opener, wd.WebLoader, wd.tariterators, wd.warn_and_continue
        wd.DataPipeline, wd.SimpleShardList, wd.tarfile_to_samples, wd.rename, wd.to_tuple""",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_public_program_imports_is_there(program):
    run(INSTALL + "import webdataset as wds\n" + textwrap.dedent(PROGRAMS[program]))
