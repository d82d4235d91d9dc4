"""Bars are seen on a terminal and nowhere else."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from penstock.cli.progress import track
from penstock.cli.report import Report
from terminals import run_at_terminal

CODE = (
    "import sys\n"
    "from penstock.cli.progress import track\n"
    "for _ in track(range(50), 'Counting'): pass\n"
    "print('rich' in sys.modules)"
)


def test_items_pass_unchanged_and_in_order() -> None:
    assert list(track(iter("abc"), "Passing", 3)) == ["a", "b", "c"]


def test_in_a_pipe_nothing_is_said_and_rich_is_not_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


def seen_on_a_terminal(columns: int, code: str = CODE) -> str:
    shown, printed = run_at_terminal([sys.executable, "-c", code], columns)
    assert printed == b"True\n"
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)


def test_on_a_terminal_a_bar_is_shown_on_stderr() -> None:
    shown = seen_on_a_terminal(100)
    assert "Counting" in shown
    assert "samples/s" in shown


@pytest.mark.parametrize("columns", [30, 44, 60, 80, 100, 200])
def test_the_bar_is_there_however_narrow_the_terminal_is(columns: int) -> None:
    shown = seen_on_a_terminal(columns, CODE.replace("Counting", "Reading the samples"))
    last = re.split(r"[\r\n]+", shown.strip())[-1]
    assert last.count("━") >= 4
    assert "50/50" in last
    assert len(last) <= columns


def test_leaving_early_closes_the_source() -> None:
    closed = []

    def source():
        try:
            yield from range(10)
        finally:
            closed.append(True)

    items = track(source(), "Leaving")
    next(items)
    items.close()
    assert closed == [True]


def test_a_json_report_prints_figures_and_no_sentence(capsys) -> None:
    report = Report("trial", as_json=True)
    report.say("for a person")
    report.figures["shards"] = 3
    report.close()
    assert capsys.readouterr().out == '{"schema": "penstock.trial/1", "shards": 3}\n'


def test_a_plain_report_prints_sentences_and_no_figure(capsys) -> None:
    report = Report()
    report.say("for a person")
    report.figures["shards"] = 3
    report.close()
    assert capsys.readouterr().out == "for a person\n"
