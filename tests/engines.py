"""What the tests run over: every engine of `plan.ENGINES` that covers everything.

Engines that cover a part have a test file of their own.
"""

import pytest

from jax_convbatch import plan

ENGINES = tuple(plan.GENERAL_ENGINES)


def _param(platform, value, name):
    marks = [pytest.mark.gpu] if platform == "cuda" else []
    return pytest.param(value, marks=marks, id=name)


PLATFORMS = [_param(platform, platform, platform) for platform in ("cpu", "cuda")]

# (engine, platform) for every platform that the engine has code for.
RUNS = [
    _param(platform, (name, platform), f"{name}-{platform}")
    for name in ENGINES
    for platform in plan.ENGINES[name]
]
