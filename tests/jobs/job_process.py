"""A job in a process of its own, to be killed or to be one of several.

    python job_process.py ENGINE INPUTS OUTPUTS [--worker K/N] [--pause S] [--jobs J]

Prints the report at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from penstock.jobs import map_shards


def work(sample):
    time.sleep(float(os.environ["JOB_PAUSE"]))
    return {**sample, "txt": sample["txt"].upper()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("engine")
    parser.add_argument("inputs")
    parser.add_argument("outputs")
    parser.add_argument("--worker")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds per sample")
    arguments = parser.parse_args()
    os.environ["JOB_PAUSE"] = str(arguments.pause)  # not in the function, which must not change
    worker = None
    if arguments.worker:
        number, _, count = arguments.worker.partition("/")
        worker = (int(number), int(count))
    report = map_shards(
        work,
        arguments.inputs,
        arguments.outputs,
        engine=arguments.engine,
        jobs=arguments.jobs,
        worker=worker,
        index=False,
        name="test",
        version="fixed",
    )
    print(json.dumps({"digest": report.digest, "ran": report.ran, "done": report.done}))


if __name__ == "__main__":
    sys.exit(main())
