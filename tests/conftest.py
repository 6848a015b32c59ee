# SPDX-License-Identifier: Apache-2.0
"""Fixtures: where a test runs, and 64-bit numbers.

The whole session sees 8 virtual CPU devices, so that tests of sharding need no
process of their own. Everything else runs on the first of them.
"""

import os

import jax
import pytest
from engines import COLUMN_RUNS, DEFORM_RUNS, PLATFORMS, RUNS
from hypothesis import HealthCheck, Phase, settings
from jax.sharding import AxisType

from jax_convbatch._native import targets
from jax_convbatch._select import choices

pytest_plugins = ["gpu_suite"]  # the option --summary

jax.config.update("jax_num_cpu_devices", 8)

# The same examples on every run: a failure that CI shows is one that anybody gets.
settings.register_profile(
    "fixed",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# For tests/mutants.py, to which any failing example will do.
settings.register_profile(
    "unshrunk",
    settings.get_profile("fixed"),
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.fixture(autouse=True)
def own_choices(tmp_path, monkeypatch):
    """Keeps the user's tuned file out of the tests, and what they write out of it."""
    path = tmp_path / "tuned"
    monkeypatch.setattr(choices, "tuned_file", lambda device: path / "file.json")
    choices.forget()
    yield path / "file.json"
    choices.forget()


def pytest_configure(config):
    if config.getoption("numprocesses", None):
        # The processes of pytest-xdist, which begin after this, share cores and GPU.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    # Tests that are not marked `gpu` do not depend on there being one.
    if "not gpu" in config.option.markexpr:
        jax.config.update("jax_platforms", "cpu")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if "native" in item.fixturenames:
            item.add_marker("cuda_module")


@pytest.fixture(params=PLATFORMS)
def platform(request):
    """Runs the test on the CPU and, marked `gpu`, on CUDA."""
    with jax.default_device(jax.devices(request.param)[0]):
        yield request.param


@pytest.fixture(params=RUNS)
def engine(request):
    """Runs the test with every engine, on every platform it has code for."""
    name, platform = request.param
    with jax.default_device(jax.devices(platform)[0]):
        yield name


@pytest.fixture(params=COLUMN_RUNS)
def column_engine(request):
    """The same with the engines that need a workspace."""
    name, platform = request.param
    with jax.default_device(jax.devices(platform)[0]):
        yield name


@pytest.fixture(params=DEFORM_RUNS)
def sampler(request):
    """Runs the test with every engine of deform_conv, on every platform."""
    name, platform = request.param
    with jax.default_device(jax.devices(platform)[0]):
        yield name


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def make_mesh(kind=AxisType.Auto, **axes):
    return jax.make_mesh(
        tuple(axes.values()),
        tuple(axes),
        axis_types=(kind,) * len(axes),
        devices=jax.devices("cpu"),
    )


@pytest.fixture
def mesh():
    return make_mesh(data=8)


@pytest.fixture
def mesh_2d():
    return make_mesh(data=4, model=2)


@pytest.fixture
def explicit_axes():
    return make_mesh(AxisType.Explicit, data=4, model=2)


@pytest.fixture
def explicit_mesh(explicit_axes):
    with jax.set_mesh(explicit_axes):
        yield explicit_axes


@pytest.fixture
def native():
    """What the CUDA module would do with a convolution, or None; needs no GPU."""
    module = targets._natives["cuda"].module
    if module is None:
        pytest.skip("the CUDA module is not there; `make cuda-compile` builds it")

    def plan(*args):
        return next(iter(module.implicit_gemm_plans(*args)), None)

    return plan


@pytest.fixture
def hopper():
    """The first CUDA device, which these tests need to be a Hopper GPU."""
    device = jax.devices("cuda")[0]
    if device.compute_capability != "9.0":
        pytest.skip(f"compute capability {device.compute_capability}")
    with jax.default_device(device):
        yield
