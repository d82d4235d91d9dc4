"""Decodes data that may crash, hang or use all memory in a separate process."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys

import pytest

MAX_DECODED_BYTES = 64 << 20
CHILD = r"""
import base64, json, os, resource, sys, time

import numpy, torch, PIL.Image, simplejpeg, cbor2, msgpack, av, soundfile
from penstock.codecs import Decoder
from penstock.codecs import images, records, arrays, audio, video
from penstock.codecs.safe_pickle import unpickler
from penstock.errors import PenstockError

torch.set_num_threads(1)


def decode(field, data, result):
    handlers = ["rgb8", audio.torch_audio, video.torch_video]
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + LIMIT, size + LIMIT))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    try:
        value = Decoder(*handlers)({"__key__": "k", "__url__": "u.tar", field: data})[field]
        del value
        outcome = "a value"
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"
        del error
    seconds = time.process_time() - begin
    taken = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    os.write(result, json.dumps([outcome[:2000], seconds, taken]).encode())


for line in sys.stdin:
    field, data = json.loads(line)
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        try:
            decode(field, base64.b64decode(data), writing)
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as stream:
        found = stream.read()
    status = os.waitpid(process, 0)[1]
    crash = f"the process ended by signal {os.WTERMSIG(status)}"
    print(found.decode() or json.dumps([crash, SECONDS, 0]), flush=True)
"""


class Outcome:
    """The result of decoding a field: the error as text, CPU seconds, and bytes of memory."""

    def __init__(self, text, seconds, taken):
        self.text, self.seconds, self.taken = text, seconds, taken

    def __repr__(self):
        return f"{self.text} ({self.seconds:.1f} s, {self.taken / 1e6:.0f} MB)"


@pytest.fixture(scope="session")
def decode_apart():
    """Return a function that decodes in another process: ``decode_apart("pyd", data)``.

    It returns the Outcome. Limits: 2 GB of memory, 10 seconds, 64 MiB for a decoded field.
    """
    child = subprocess.Popen(
        [sys.executable, "-c", f"LIMIT, SECONDS = {2 << 30}, 10\n{CHILD}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PENSTOCK_MAX_DECODED_BYTES": str(MAX_DECODED_BYTES),
        },
    )
    assert child.stdin is not None
    assert child.stdout is not None
    requests, answers = child.stdin, child.stdout

    def decode(field, data):
        requests.write(json.dumps([field, base64.b64encode(data).decode()]) + "\n")
        requests.flush()
        return Outcome(*json.loads(answers.readline()))

    yield decode
    requests.close()
    child.wait(timeout=60)
