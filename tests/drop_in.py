# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: another project's tests, with our convolution for `jax.lax`'s.

    PYTHONPATH=jax_convbatch/tests pytest -p drop_in jax/tests/lax_autodiff_test.py

In every module that the tests have loaded `conv_general_dilated` becomes ours, as
does the default of Flax's layers; with DROP_IN_LAYERS=1 Flax's `Conv` and
`ConvTranspose` become our layers too. The summary says how many calls ran natively.
"""

import collections
import functools
import os
import sys
from pathlib import Path

import jax
import pytest

import jax_convbatch
from jax_convbatch._api import canonical
from jax_convbatch._native import targets
from jax_convbatch._select.plan import plan_of

STOCK = jax.lax.conv_general_dilated
PACKAGE = str(Path(jax_convbatch.__file__).parent)

# How often each kind of call was made: "native", or why `jax.lax` ran.
calls: collections.Counter[str] = collections.Counter()


def _asked_for_by_us() -> bool:
    """Whether this package, or JAX while it lowers, is what calls."""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE) or code.co_name == "lower_fun":
            return True
        frame = frame.f_back
    return False


@functools.wraps(STOCK)
def conv_general_dilated(*args, **kwargs):
    if _asked_for_by_us():
        return STOCK(*args, **kwargs)
    return jax_convbatch.conv_general_dilated(*args, **kwargs)


def _counting(resolve):
    @functools.wraps(resolve)
    def counted(*args, **kwargs):
        call = resolve(*args, **kwargs)
        calls[_in_jax_lax(call) or "native"] += 1
        return call

    return counted


def _in_jax_lax(call) -> str | None:
    """Why a call runs in `jax.lax` where JAX runs by default, or None."""
    if isinstance(call, str):
        return call
    platform = targets.default_platform()
    chosen = plan_of(call.params, "fprop", call.x.dtype, call.out_dtype, platform)
    return chosen.reason if chosen.engine == "xla" else None


def _replace():
    modules = {name: m for name, m in sys.modules.items() if m is not None}
    for name, module in modules.items():
        if name.split(".")[0] in ("jax_convbatch", __name__):
            continue
        for key, value in list(vars(module).items()):
            if value is STOCK:
                setattr(module, key, conv_general_dilated)
            elif isinstance(value, type) and name.startswith("flax."):
                _replace_default(value)


def _replace_default(layer_class):
    """Flax's layers hold the function as a field or as a keyword's default."""
    if layer_class.__dict__.get("conv_general_dilated") is STOCK:
        layer_class.conv_general_dilated = conv_general_dilated
    for function in vars(layer_class).values():
        for key, value in (getattr(function, "__kwdefaults__", None) or {}).items():
            if value is STOCK:
                function.__kwdefaults__[key] = conv_general_dilated


def _replace_layers():
    from flax import linen, nnx

    from jax_convbatch.flax import linen as our_linen
    from jax_convbatch.flax import nnx as our_nnx

    for theirs, ours in ((linen, our_linen), (nnx, our_nnx)):
        for name in ("Conv", "ConvTranspose"):
            setattr(theirs, name, getattr(ours, name))


for _name in ("conv", "layer"):
    sys.modules[f"jax_convbatch._api.{_name}"].resolve = _counting(canonical.resolve)
if os.environ.get("DROP_IN_LAYERS") == "1":
    _replace_layers()
_replace()


def pytest_collection_finish(session):
    _replace()  # what the tests have imported since


def pytest_sessionfinish(session):
    output = getattr(session.config, "workeroutput", None)
    if output is not None:  # a worker of pytest-xdist
        output["drop_in"] = dict(calls)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    calls.update(getattr(node, "workeroutput", {}).get("drop_in", {}))


def pytest_terminal_summary(terminalreporter):
    total = sum(calls.values())
    say = terminalreporter.write_line
    if not total:
        say("drop_in: no convolution was called")
        return
    share = 100 * calls["native"] / total
    say(f"drop_in: {calls['native']} of {total} convolutions native, {share:.1f}%")
    for why, count in calls.most_common():
        if why != "native":
            say(f"drop_in: {count} in jax.lax: {why}")
