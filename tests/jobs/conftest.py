"""Shards and folders for the tests of jobs, and the servers that the tests of storage use."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "storage"))

from job_inputs import make_inputs
from servers_clouds import azure_endpoint, gcs_address  # noqa: F401
from servers_s3 import no_keys, seaweed  # noqa: F401

ARRAY_VARIABLES = (
    *("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "PBS_ARRAY_INDEX", "PBS_ARRAYID"),
    *("LSB_JOBINDEX", "SGE_TASK_ID", "JOB_COMPLETION_INDEX", "AWS_BATCH_JOB_ARRAY_INDEX"),
)


@pytest.fixture(autouse=True)
def _no_array(monkeypatch):
    """No test depends on the scheduler that runs the tests."""
    for name in ARRAY_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def inputs(tmp_path):
    """Six shards of twenty samples each, as one URL with braces."""
    return make_inputs(tmp_path / "in")
