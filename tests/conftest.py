"""Settings and fixtures for all tests."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator

import pytest
from hypothesis import settings

# No deadline: examples must not fail for being slow on a busy machine.
settings.register_profile("penstock", deadline=None, print_blob=True)
settings.load_profile("penstock")


RANK_VARIABLES = ("RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS", "WDS_SEED", "WDS_EPOCH")


@pytest.fixture(autouse=True)
def _clear_rank_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove rank, worker, seed and epoch from the environment."""
    for name in RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def pytest_configure() -> None:
    """Let programs that tests start receive Ctrl-C: a job in the background ignores it."""
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def skip_without_package(item: pytest.Item) -> Generator[None, object, object]:
    """With ``--without-extras``, skip a test that needs a package which is not installed."""
    try:
        return (yield)
    except ImportError as error:
        if not item.config.getoption("--without-extras"):
            raise
        pytest.skip(str(error))


pytest_runtest_setup = pytest.hookimpl(wrapper=True)(skip_without_package)
pytest_runtest_call = pytest.hookimpl(wrapper=True)(skip_without_package)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without-extras",
        action="store_true",
        help="skip tests that need a package of an extra, instead of failing",
    )
    parser.addoption(
        "--flips", type=int, default=150, help="bits to flip in index files (150 are a sample)"
    )
    parser.addoption(
        "--oracle-seconds",
        type=float,
        default=60,
        help="how long tests/oracle runs random pipelines (default 60)",
    )
    parser.addoption(
        "--kills", type=int, default=2, help="rounds of each kill test (2 are a sample)"
    )
    parser.addoption(
        "--empty-tasks", type=int, default=10_000, help="tasks of the job without work"
    )
