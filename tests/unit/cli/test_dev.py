"""dev.py: what it decides, with programs that only pretend."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def dev(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "pyproject.toml").write_text("a")
    (tmp_path / "constraints.txt").write_text("b")
    for name in module.NATIVE_SOURCES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("c")
    (tmp_path / ".venv").mkdir()
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv" / "stamp")
    module.done = []
    monkeypatch.setattr(module, "works", lambda python: "venv" in module.done)
    monkeypatch.setattr(module, "make_venv", lambda: module.done.append("venv"))
    monkeypatch.setattr(module, "install", lambda extras: module.done.append(extras))
    monkeypatch.setattr(module, "COMPILER", {})
    return module


def test_the_first_run_makes_and_installs_and_the_second_does_nothing(dev) -> None:
    dev.set_up("test")
    dev.set_up("test")
    assert dev.done == ["venv", "dev"]


def test_the_demo_installs_little_and_the_tests_install_the_rest(dev) -> None:
    dev.set_up("demo")
    dev.set_up("demo")
    dev.set_up("test")
    dev.set_up("demo")
    assert dev.done == ["venv", "image,audio", "dev"]


@pytest.mark.parametrize(
    "name", ["pyproject.toml", "constraints.txt", "src/penstock/transforms/native/picture.c"]
)
def test_a_changed_file_installs_again_into_the_same_environment(dev, name) -> None:
    dev.set_up("test")
    (dev.ROOT / name).write_text("changed")
    dev.set_up("test")
    assert dev.done == ["venv", "dev", "dev"]


def test_an_installation_that_failed_is_tried_again(dev, monkeypatch) -> None:
    def fail(extras):
        raise SystemExit("pip failed")

    with monkeypatch.context() as broken:
        broken.setattr(dev, "install", fail)
        with pytest.raises(SystemExit):
            dev.set_up("test")
    dev.set_up("test")
    assert dev.done == ["venv", "dev"]


def test_one_failing_check_fails_the_whole_and_the_others_still_run(dev, monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(dev, "run", lambda program, words: ran.append(program) or program == "mypy")
    assert dev.test([]) == 1
    assert len(ran) == len(dev.CHECKS)
    assert capsys.readouterr().out.endswith("\nfailed: mypy\n")


def test_all_passing_checks_are_success(dev, monkeypatch) -> None:
    monkeypatch.setattr(dev, "run", lambda program, words: 0)
    assert dev.test([]) == 0


def test_further_arguments_reach_pytest_alone(dev, monkeypatch) -> None:
    calls = {}
    monkeypatch.setattr(dev, "run", lambda program, words: calls.setdefault(program, words) and 0)
    dev.test(["-k", "shuffle"])
    assert calls["pytest"][-2:] == ["-k", "shuffle"]
    assert "-k" not in calls["ruff"]


def test_soak_runs_every_long_check_and_random_ones_for_the_minutes_given(dev, monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(dev, "run", lambda program, words: calls.append(words) or 0)
    monkeypatch.setattr("sys.argv", ["dev.py", "soak", "--minutes", "5", "--", "--first", "7"])
    assert dev.main() == 0
    assert len(calls) == len(dev.LONG_CHECKS)
    assert calls[0][-4:] == ["--minutes", "5.0", "--first", "7"]


def test_soak_fails_with_its_checks_and_knows_their_names(dev, monkeypatch) -> None:
    monkeypatch.setattr(dev, "run", lambda program, words: 1)
    monkeypatch.setattr("sys.argv", ["dev.py", "soak", "--only", "oracle"])
    assert dev.main() == 1
    monkeypatch.setattr("sys.argv", ["dev.py", "soak", "--only", "tests"])
    with pytest.raises(SystemExit, match=r"one of oracle, index, .*not tests"):
        dev.main()


def test_the_demo_keeps_its_data_in_the_checkout_wherever_it_is_called(
    dev, monkeypatch, tmp_path
) -> None:
    calls = []
    monkeypatch.setattr(dev, "run", lambda program, words, cwd: calls.append(words) or 0)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert dev.demo(["--samples", "50"]) == 0
    assert calls == [["demo", "--out", "../demo-data", "--samples", "50"]]


APT_GET = """#!/bin/sh
echo "$@" >> {folder}/asked
case "$*" in
  *" update"*) exit {update} ;;
  *install*nginx*) printf '#!/bin/sh\n' > {folder}/nginx; /bin/chmod +x {folder}/nginx ;;
  *install*npm*) exit 100 ;;
esac
"""


@pytest.fixture
def bare(dev, monkeypatch, tmp_path):
    """A machine whose only program is an apt-get that knows nginx and cannot install npm."""

    def make(update=0):
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "apt-get").write_text(APT_GET.format(folder=folder, update=update))
        (folder / "apt-get").chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        monkeypatch.setenv("CI", "1")
        monkeypatch.setattr(dev, "FOLDERS", [str(folder / "include")])
        monkeypatch.setattr(dev, "LOG", tmp_path / "log")
        monkeypatch.setattr(dev.os, "geteuid", lambda: 0)
        return folder

    return make


@pytest.mark.parametrize("update", [0, 100])
def test_missing_system_packages_are_installed_one_by_one(dev, bare, capsys, update):
    folder = bare(update)
    dev.install_system_packages(dev.FOR_TESTS, "Tests are skipped")
    asked = (folder / "asked").read_text().splitlines()
    assert [line.split()[2] for line in asked] == ["update", *["install"] * 3]
    assert "nginx-light --no-install-recommends" in asked[1]
    printed = capsys.readouterr().out
    assert "MISSING: npm, clang. Tests are skipped" in printed
    assert "sudo apt-get install npm clang\n" in printed


def test_apt_get_is_not_called_if_nothing_is_missing(dev, bare):
    folder = bare()
    for name in dev.FOR_TESTS:
        (folder / name).write_text("")
        (folder / name).chmod(0o755)
    dev.install_system_packages(dev.FOR_TESTS, "Tests are skipped")
    assert not (folder / "asked").exists()


def test_a_missing_header_is_found_missing_and_a_present_one_is_not(dev, bare):
    folder = bare()
    assert dev.find_missing({"jpeglib.h": "libjpeg-dev"}) == ["jpeglib.h"]
    (folder / "include").mkdir()
    (folder / "include" / "jpeglib.h").write_text("")
    assert dev.find_missing({"jpeglib.h": "libjpeg-dev"}) == []


def test_a_user_who_may_not_install_sees_the_command(dev, bare, monkeypatch, capsys):
    folder = bare()
    monkeypatch.setattr(dev.os, "geteuid", lambda: 1000)
    dev.install_system_packages(dev.FOR_TESTS, "Tests are skipped")
    assert not (folder / "asked").exists()
    assert "sudo apt-get install nginx-light npm clang" in capsys.readouterr().out
