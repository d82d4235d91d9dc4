#!/usr/bin/env python3
"""Everything a fresh checkout needs, with nothing but Python 3.11 installed.

    python3 dev.py demo    make a small data set, stream it, train on it, show a batch
    python3 dev.py test    run every check and every test
    python3 dev.py soak    run the long checks; --minutes (default 30) for random ones

All make or update the virtual environment ``.venv`` next to this file first. They ask nothing and
can be run again. ``demo`` installs only what it needs, without PyTorch; the others install the
rest. Missing system packages (a C compiler and libjpeg-turbo's headers for the native module;
nginx, npm and clang for tests) are installed only as root on a Debian without systemd, or in CI.
Without the former the fallback decoder is used; tests that need one of the latter are skipped. The
output says what is missing.

Arguments after ``--`` are passed on: ``dev.py test -- -k shuffle``,
``dev.py demo -- --samples 500``, ``dev.py soak --minutes 5 -- --first 1234``.
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

# What pip does not install: a program or header, and its Debian package.
COMPILER = {"cc": "gcc", "jpeglib.h": "libjpeg-dev"}
FOR_TESTS = {"nginx": "nginx-light", "npm": "npm", "clang": "clang"}
FOLDERS = ["/usr/sbin", "/usr/include", "/usr/local/include"]  # nginx and headers are not on PATH

# Compiled by the installation.
NATIVE_SOURCES = [
    "src/penstock/transforms/native/__init__.py",
    "src/penstock/transforms/native/picture.c",
    "src/penstock/transforms/native/huffman.h",
]

# What each command installs with pip; an installation for "test" also serves "demo".
EXTRAS = {"demo": "image,audio", "test": "dev"}

# Every step of `dev.py test`: name, program in .venv, arguments.
CHECKS = [
    ("ruff", "ruff", ["check", "."]),
    ("format", "ruff", ["format", "--check", "."]),
    ("mypy", "mypy", []),
    ("layers", "lint-imports", []),
    ("docs", "mkdocs", ["build", "--strict", "--quiet"]),
    ("tests", "pytest", ["-n", WORKERS, "-rsfE", "tests"]),
    ("doctests", "pytest", ["-n", WORKERS, "--doctest-modules", "src"]),
]

# Every check of `dev.py soak`: name, program in .venv, arguments. It prints its progress and each
# failure, and ends with a status other than 0 after one. {minutes} is replaced by --minutes.
LONG_CHECKS = [
    ("oracle", "python", ["tests/oracle", "--minutes", "{minutes}"]),
    (
        "index",
        "pytest",
        ["tests/unit/shards/index", "-k", "damaged or sidecars", "--flips", "2000"],
    ),
    (
        "job-kills",
        "pytest",
        ["tests/jobs/test_kills.py", "-k", "killed", "--kills", "30"],
    ),
    (
        "job-array",
        "pytest",
        ["tests/jobs/test_array.py", "-k", "number_of", "--kills", "60"],
    ),
    (
        "job-tasks",
        "pytest",
        ["tests/jobs/test_kills.py", "-k", "empty", "--empty-tasks", "100000"],
    ),
    ("mixtures", "pytest", ["tests/state/test_mixtures.py", "-k", "killed", "--kills", "50"]),
    ("tools-kills", "pytest", ["tests/tools", "-k", "killed", "--kills", "50"]),
]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["demo", "test", "soak"])
    parser.add_argument("--minutes", type=float, default=30, help="of random checks (soak)")
    parser.add_argument("--only", metavar="CHECK", help="one long check instead of all (soak)")
    parser.add_argument("rest", nargs="*", metavar="-- ARGUMENT", help="what the command gets")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)  # argparse wants them beside "command"
    arguments = parser.parse_args(words[:end])
    arguments.rest += words[end + 1 :]
    if sys.version_info < (3, 11):  # noqa: UP036  (an older one must be told, not crash)
        sys.exit("dev.py needs Python 3.11 or newer, this is " + sys.version.split()[0])
    set_up("demo" if arguments.command == "demo" else "test")
    if arguments.command == "soak":
        return soak(arguments.minutes, arguments.only, arguments.rest)
    return demo(arguments.rest) if arguments.command == "demo" else test(arguments.rest)


def demo(rest):
    """Run `penstock demo`; its data goes into the checkout, where git ignores it."""
    return run("penstock", ["demo", "--out", os.path.relpath(ROOT / "demo-data"), *rest], cwd=None)


def test(rest):
    """Run all checks, even if one fails, and print at the end which did."""
    install_system_packages(FOR_TESTS, "Tests that need them are skipped")
    return run_all(
        (name, program, [*words, *rest] if name == "tests" else words)
        for name, program, words in CHECKS
    )


def soak(minutes, only, rest):
    """Run the long checks."""
    names = [name for name, _, _ in LONG_CHECKS]
    if only not in (None, *names):
        sys.exit(f"dev.py soak: --only is one of {', '.join(names)}, not {only}")
    return run_all(
        (name, program, [*(word.format(minutes=minutes) for word in words), *rest])
        for name, program, words in LONG_CHECKS
        if only in (None, name)
    )


def run_all(checks):
    """Run checks one after another and print a line for each; 1 if any failed."""
    results = []
    for name, program, words in checks:
        print(f"\n=== {name}: {program} {' '.join(words)}", flush=True)
        started = time.monotonic()
        results.append((name, run(program, words), time.monotonic() - started))
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


def set_up(command):
    """Make .venv and install the project for the command, unless that was done for these files."""
    installed = STAMP.read_text() if STAMP.exists() else ""
    if installed in (fingerprint(command), fingerprint("test")):
        return
    if not works(BIN / "python"):
        make_venv()
    install_system_packages(COMPILER, "The slower fallback decoder of photographs is used")
    install(EXTRAS[command])
    STAMP.write_text(fingerprint(command))


def fingerprint(command):
    """Hash everything the installation depends on."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {ROOT} {EXTRAS[command]}".encode())
    for name in ("pyproject.toml", "constraints.txt", *NATIVE_SOURCES):
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


def install(extras):
    """pip install the project with these extras; pip's output goes into a log file."""
    what = ["install", "-e", f".[{extras}]", "-c", "constraints.txt"]
    command = [str(BIN / "python"), "-m", "pip", "--disable-pip-version-check", *what]
    print(f"Installing penstock[{extras}]; this is done once", flush=True)
    started = time.monotonic()
    with open(LOG, "a") as log:
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
        sys.exit(f"pip failed; its whole output is in {LOG}")
    print(f"Installed in {time.monotonic() - started:.0f} s", flush=True)


def install_system_packages(packages, consequence):
    """Install with apt-get what is missing, where this script may; print what is still missing."""
    missing = find_missing(packages)
    if missing and may_apt():
        apt_get("update")  # if a source fails, the lists that are there may be enough
        for name in missing:  # one by one: if one cannot be installed, the others can
            apt_get("install", packages[name])
        missing = find_missing(packages)
    if not missing:
        return
    print(f"MISSING: {', '.join(missing)}. {consequence}; on Debian or Ubuntu:")
    print(f"    sudo apt-get install {' '.join(packages[name] for name in missing)}", flush=True)


def find_missing(packages):
    """Return the programs that are not on PATH, and the headers in no include folder."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *FOLDERS])
    mode = {True: os.F_OK, False: os.F_OK | os.X_OK}
    return [
        name
        for name in packages
        if shutil.which(name, mode[name.endswith(".h")], path=path) is None
    ]


def may_apt():
    """As root, but not on a machine in use: there, systemd would start nginx as a service."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    in_use = Path("/run/systemd/system").exists() and not os.environ.get("CI")
    return root and not in_use and shutil.which("apt-get") is not None


def apt_get(command, *packages):
    """Run apt-get and return whether it succeeded; its output goes into the log."""
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
        print(f"apt-get failed; its whole output is in {LOG}", flush=True)
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
