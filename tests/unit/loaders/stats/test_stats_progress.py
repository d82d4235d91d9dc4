"""The bar with the loader's figures: only where somebody looks."""

from __future__ import annotations

import io
import sys

import pytest

import penstock


def numbers(count: int = 5) -> penstock.WebLoader:
    return penstock.WebLoader(penstock.DataPipeline(list(range(count))), batch_size=None)


def test_in_a_pipe_nothing_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(penstock.watch(numbers())) == [0, 1, 2, 3, 4]
    assert capsys.readouterr() == ("", "")


def test_at_a_terminal_the_line_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    assert list(penstock.watch(numbers(), "Epoch 1", total=5)) == [0, 1, 2, 3, 4]
    assert "Epoch 1" in screen.getvalue()
    assert "waits" in screen.getvalue()
