"""The command itself: help, version, errors and exit statuses."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types

import pytest

import penstock
from penstock import cli
from penstock.errors import Origin, ShardError


@pytest.fixture
def command(monkeypatch):
    """Puts a command `trial` in the table that does what it is told."""

    def install(run) -> None:
        module = types.ModuleType("penstock.cli.trial")
        module.add_arguments = lambda parser: parser.add_argument("--loud", action="store_true")
        module.run = run
        monkeypatch.setitem(sys.modules, "penstock.cli.trial", module)
        monkeypatch.setattr(cli, "COMMANDS", {"trial": ("penstock.cli.trial", "a trial")})

    return install


def test_every_command_of_the_table_can_be_loaded() -> None:
    for module, summary in cli.COMMANDS.values():
        loaded = importlib.import_module(module)
        assert callable(loaded.add_arguments)
        assert callable(loaded.run)
        assert summary


def test_the_version_is_that_of_the_package(capsys) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"penstock {penstock.__version__}\n"


def test_help_names_every_command_and_loads_none() -> None:
    code = (
        "import sys; from penstock.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "bad = {'numpy', 'torch', 'rich', 'penstock.cli.demo'} & set(sys.modules)\n"
        "sys.exit(f'loaded {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in cli.COMMANDS:
        assert name in done.stdout


def test_a_command_gets_its_arguments_and_gives_the_status(command) -> None:
    command(lambda arguments: 7 if arguments.loud else 0)
    assert cli.main(["trial", "--loud"]) == 7
    assert cli.main(["trial"]) == 0


def test_an_unknown_command_is_wrong_usage(capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["no-such-command"])
    assert "demo" in capsys.readouterr().err


def test_no_command_shows_the_help_and_is_wrong_usage(capsys) -> None:
    assert cli.main([]) == 2
    assert "demo" in capsys.readouterr().out


def test_an_error_of_ours_is_one_line_with_its_origin(command, capsys) -> None:
    def run(arguments):
        error = ShardError("the shard is cut\n short", origin=Origin("x.tar", offset=512))
        error.add_note("in tarfile_to_samples")
        raise error

    command(run)
    assert cli.main(["trial"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "penstock: the shard is cut short (x.tar, byte 512) in tarfile_to_samples\n"
    )


def test_a_missing_file_is_one_line_too(command, capsys) -> None:
    command(lambda arguments: open("/no/such/file"))  # noqa: SIM115
    assert cli.main(["trial"]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_a_bug_shows_its_traceback(command) -> None:
    command(lambda arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["trial"])


def test_ctrl_c_is_one_line_that_says_what_was_kept(command, capsys) -> None:
    def run(arguments):
        if arguments.loud:
            arguments.kept = "half of it is in a\x1b.tar"
        raise KeyboardInterrupt

    command(run)
    assert cli.main(["trial"]) == 130
    assert capsys.readouterr().err == "penstock: interrupted; nothing was written\n"
    assert cli.main(["trial", "--loud"]) == 130
    assert capsys.readouterr().err == "penstock: interrupted; half of it is in a\\x1b.tar\n"


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    code = (
        "import sys; from penstock import cli; from types import ModuleType\n"
        "m = ModuleType('t'); m.add_arguments = lambda p: None\n"
        "m.run = lambda a: [print('x' * 1000) for _ in range(1000)] and 0\n"
        "sys.modules['t'] = m; cli.COMMANDS = {'t': ('t', 't')}\n"
        "sys.exit(cli.main(['t']))"
    )
    pipe = f'{sys.executable} -c "$CODE" | head -c 10'
    done = subprocess.run(
        ["bash", "-c", pipe], env={"CODE": code, "PATH": "/usr/bin:/bin"}, capture_output=True
    )
    assert done.stderr == b""
