"""One Ray for all tests, with GPUs that are not there; a model small enough to be no matter."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest
import ray


@pytest.fixture(scope="package")
def ray_started() -> Iterator[None]:
    """A local Ray with 4 CPUs and 4 pretended GPUs, gone before the next package's tests count processes and ports."""
    settings = {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # by default 15: they keep time, whatever else runs
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        # A temporary folder of its own: tests that run beside look for what is left there too.
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        for name, value in settings.items():
            patch.setenv(name, value)
        ray.init(
            "local", num_cpus=4, num_gpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20
        )
        yield
        ray.shutdown()
