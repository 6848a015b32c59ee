# SPDX-License-Identifier: Apache-2.0
"""What the tests run over: every engine that covers everything on its platform.

Engines that cover a part have a test file of their own.
"""

import pytest

from jax_convbatch._deform import plan as deform_plan
from jax_convbatch._select import plan

ENGINES = plan.GENERAL_ENGINES["cpu"]


def _param(platform, value, name):
    marks = [pytest.mark.gpu] if platform == "cuda" else []
    return pytest.param(value, marks=marks, id=name)


PLATFORMS = [_param(platform, platform, platform) for platform in ("cpu", "cuda")]

# (engine, platform) for every platform where the engine covers everything.
_ALL = [
    _param(platform, (name, platform), f"{name}-{platform}")
    for platform, names in plan.GENERAL_ENGINES.items()
    for name in names
]
# Most tests leave out the loop over samples: test_reproducible.py shows on any problem
# of any dtype that it gives the bits of "im2col_gemm".
RUNS = [run for run in _ALL if run.values[0][0] != "per_sample"]
# Those that unroll into a workspace, whose size somebody may limit.
COLUMN_RUNS = [run for run in _ALL if run.values[0][0] != "implicit_gemm"]
# (engine, platform) of deformable convolution, jax.lax among them.
DEFORM_RUNS = [
    *(
        _param(platform, (deform_plan.ENGINE, platform), f"im2col_gemm-{platform}")
        for platform in deform_plan.PLATFORMS
    ),
    _param("cpu", ("xla", "cpu"), "xla-cpu"),
]
