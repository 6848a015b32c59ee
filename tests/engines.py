"""What the tests run over. A new engine is tested by being in `plan.ENGINES`."""

import pytest

from jax_convbatch import plan

ENGINES = tuple(plan.ENGINES)


def _param(platform, value, name):
    marks = [pytest.mark.gpu] if platform == "cuda" else []
    return pytest.param(value, marks=marks, id=name)


PLATFORMS = [_param(platform, platform, platform) for platform in ("cpu", "cuda")]

# (engine, platform) for every platform that the engine has code for.
RUNS = [
    _param(platform, (name, platform), f"{name}-{platform}")
    for name, platforms in plan.ENGINES.items()
    for platform in platforms
]
