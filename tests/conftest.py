"""Strict at test time: several CPU devices, no rank promotion, shapes checked at every call."""

import gc
import os
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# What one process has compiled serves the others: workers, runs that tests start, the next step.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
).strip()
if version("jax").startswith("0.10."):  # compiles in two thirds of the time; later ones lack it
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("MPLBACKEND", "agg")

import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_rank_promotion", "raise")
# Tracing makes many objects and little garbage: looking for it took an eighth of the tests' time.
gc.set_threshold(200_000, 20, 100)


def pytest_addoption(parser):
    parser.addoption(
        "--errors",
        action="store_true",
        help="run the tests of our own error messages, without the type-checking hook, "
        "which would raise before them",
    )


def pytest_configure(config):
    if not config.getoption("--errors"):
        install_import_hook("rljax", "beartype.beartype")


def pytest_collection_modifyitems(config, items):
    want = config.getoption("--errors")
    chosen = [item for item in items if (item.get_closest_marker("errors") is not None) == want]
    dropped = [item for item in items if (item.get_closest_marker("errors") is not None) != want]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = chosen


@pytest.fixture
def key():
    return jax.random.key(0)
