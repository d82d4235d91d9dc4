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
    (tmp_path / ".venv").mkdir()
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv" / "stamp")
    module.done = []
    monkeypatch.setattr(module, "works", lambda python: "venv" in module.done)
    monkeypatch.setattr(module, "make_venv", lambda: module.done.append("venv"))
    monkeypatch.setattr(module, "install", lambda: module.done.append("install"))
    return module


def test_the_first_run_makes_and_installs_and_the_second_does_nothing(dev) -> None:
    dev.set_up()
    dev.set_up()
    assert dev.done == ["venv", "install"]


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_file_installs_again_into_the_same_environment(dev, name) -> None:
    dev.set_up()
    (dev.ROOT / name).write_text("changed")
    dev.set_up()
    assert dev.done == ["venv", "install", "install"]


def test_an_installation_that_failed_is_tried_again(dev, monkeypatch) -> None:
    def fail():
        raise SystemExit("pip failed")

    with monkeypatch.context() as broken:
        broken.setattr(dev, "install", fail)
        with pytest.raises(SystemExit):
            dev.set_up()
    dev.set_up()
    assert dev.done == ["venv", "install"]


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
        monkeypatch.setattr(dev, "SBIN", str(folder / "sbin"))
        monkeypatch.setattr(dev, "LOG", tmp_path / "log")
        monkeypatch.setattr(dev.os, "geteuid", lambda: 0)
        return folder

    return make


@pytest.mark.parametrize("update", [0, 100])
def test_programs_that_are_missing_are_installed_each_by_itself(dev, bare, capsys, update):
    folder = bare(update)
    dev.install_programs()
    asked = (folder / "asked").read_text().splitlines()
    assert [line.split()[2] for line in asked] == ["update", "install", "install"]
    assert "nginx-light --no-install-recommends" in asked[1]
    told = capsys.readouterr().out
    assert "MISSING: npm." in told
    assert "sudo apt-get install npm\n" in told


def test_nothing_is_asked_where_nothing_is_missing(dev, bare):
    folder = bare()
    for name in dev.PROGRAMS:
        (folder / name).write_text("")
        (folder / name).chmod(0o755)
    dev.install_programs()
    assert not (folder / "asked").exists()


def test_who_may_not_install_is_told_what_to_do(dev, bare, monkeypatch, capsys):
    folder = bare()
    monkeypatch.setattr(dev.os, "geteuid", lambda: 1000)
    dev.install_programs()
    assert not (folder / "asked").exists()
    assert "sudo apt-get install nginx-light npm" in capsys.readouterr().out
