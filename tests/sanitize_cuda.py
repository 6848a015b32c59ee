# SPDX-License-Identifier: Apache-2.0
"""Runs the CUDA kernels on edge shapes, for compute-sanitizer: `make gpu-sanitize`.

Every operand is copied to the device and every result is a buffer of its own, so
that no kernel but ours touches them, but in layers and deformable convolutions, where
one kernel reads what another wrote.
"""

import argparse
import functools
import itertools
import os

# Each buffer is an allocation whose borders the sanitizer knows, and no graph is made
# of the launches.
os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "platform"
os.environ["XLA_FLAGS"] = "--xla_gpu_enable_command_buffer="

import deform_oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_causal
import test_channel_sums
import test_deep
import test_depthwise_sequences
import test_depthwise_toeplitz
import test_direct
import test_few_channels
import test_few_groups
import test_few_odd_channels
import test_folded
import test_groups
import test_halo_tiles
import test_hopper_wgrad
import test_implicit_gemm
import test_layer_gradients
import test_long_sums
import test_narrow
import test_norm_act_kernel
import test_one_channel
import test_quads
import test_scalars
import test_small_images
import test_strips_tf32
import test_tap_columns
import test_tf32
import test_true_f32
import test_wave
import test_windows
import tiles
from problems import whole
from promises import arrays

import jax_convbatch as jc
from jax_convbatch._primitives.bias import bias_grad


def few_channels():
    """Those of which all three operations have a kernel."""
    without = {name for name, _ in test_few_channels.NOT_OURS}
    return {n: c for n, c in test_few_channels.EDGES.items() if n not in without}


def named(kind, cases):
    return {f"{kind}, {name}": case for name, case in cases.items()}


EDGES = {
    **named("copied", test_implicit_gemm.EDGES),
    **named("windows", test_windows.WINDOWS),
    **named("windows", test_windows.STRIPS),
    **{f"windows, {name}": c for name, (c, _) in test_windows.WIDE.items()},
    **{
        f"wgrad, {name}": case
        for name, (case, _) in test_hopper_wgrad.SPLITS.items()
        if "left" in name or "slices" in name or name == "helpers, 576x64, dilated"
    },
    "wgrad, one image": test_hopper_wgrad.HALO["one image"],
    **{
        f"deep, {name}": case
        for name, case in test_deep.CASES.items()
        if name not in ("channels first", "tiles of all taps", "tails of tiles")
    },
    **named("few", few_channels()),
    **named("direct", test_direct.EDGES),
    "direct, 7x7, far": test_direct.FAR,
    **named("sequences", test_depthwise_sequences.CASES),
    **named("many taps", test_depthwise_toeplitz.CASES),
    **named("groups", test_groups.EDGES),
    **named("few groups", test_few_groups.CASES),
    **named("lines", test_groups.LINES | test_groups.FOURS),
    **named("quads", test_quads.CASES),
    **named("scalars", test_scalars.CASES),
    **{
        f"few odd, {name}": test_few_odd_channels.CASES[name]
        for name in ("3->5", "34->1, deep")
    },
    **named("thin direct", test_direct.THIN),
    **named("one channel", test_one_channel.CASES),
    **named("long sums", test_long_sums.LONG),
    # More tiles than what all blocks hold at once: their stages are filled again.
    "few, stages again": test_few_channels.problem(
        530, (6, 6), 3, 16, (3, 3), padding=((1, 1), (1, 1))
    ),
    "thin strips, stages again": test_few_channels.problem(
        400, (12, 12), 3, 64, (7, 7), (2, 2), ((3, 3), (3, 3))
    ),
    # Of more samples: in clusters whose tiles have pixels as rows.
    "long sums, rows": test_long_sums.LONG["both"]._replace(x=(9, 7, 7, 512)),
    # dw of cuBLAS, its sums in parts that a kernel of ours adds.
    "product, in parts": test_long_sums.problem(8, (20, 20), 512, 512, (1, 1), pad=0),
    **{f"large tiles, {name}": case for name, (case, *_) in test_tf32.TILES.items()},
    **named("true f32", test_true_f32.CASES),
    **{f"wave, {name}": case for name, (case, *_) in test_wave.WAVES.items()},
    **named("odd", {n: c for n, (c, _) in test_implicit_gemm.ODD_TILES.items()}),
    **named(
        "folded", {n: test_folded.CASES[n][0] for n in ("8->8", "odd", "from one")}
    ),
    **named("tap columns", test_tap_columns.CASES),
    **named("thin", test_narrow.CASES),
    **named("thin ring", test_narrow.RINGS),
    **{
        f"thin strips, {name}": case
        for name, case in {
            **test_strips_tf32.FORWARD,
            **test_strips_tf32.BACKWARD,
            **test_strips_tf32.FILTERS,
        }.items()
    },
}
# Large problems take the tools too long; these reach the same kernels.
LONG = (
    *("64 columns", "128 columns", "many samples", "stem, wide", "patches of 16"),
    *("many tiles", "strips of seven", "left out", "192 pixels", "many narrow tiles"),
)
SHAPES = {name: case for name, case in EDGES.items() if not name.endswith(LONG)}


def dtypes(name):
    """One 16-bit type stands for both."""
    single = (
        "one channel",
        "lines",
        "quads",
        "scalars",
        "few odd",
        "large tiles",
        "true f32",
        "thin strips",
    )
    if name.startswith(single):
        return ("float32",)
    both = name.startswith(("copied", "deep", "folded", "sequences", "thin"))
    return ("bfloat16", "float32") if both and "direct" not in name else ("bfloat16",)


def convolution(case, dtype, precision=None, ops=("fprop", "dgrad", "wgrad")):
    x, w, dy = arrays(case, functools.partial(whole, most=1), dtype)
    conv = functools.partial(
        jc.conv_general_dilated,
        **case.kwargs,
        algorithm="implicit_gemm",
        precision=precision,
    )

    @jax.jit
    def some(x, w, dy):
        y, pullback = jax.vjp(conv, x, w)
        results = zip(("fprop", "dgrad", "wgrad"), (y, *pullback(dy)), strict=True)
        return [result for op, result in results if op in ops]

    return some(x, w, dy)


def halos(case, dtype, config):
    """By tiles that the rule would not choose for so small a problem."""
    with pytest.MonkeyPatch.context() as patch:
        tiles.given(patch, fprop=config, dgrad=config)
        return convolution(case, dtype, ops=("fprop", "dgrad"))


def causal(shape, dtype, kind):
    """Forward, all gradients, and one more input."""
    both = kind == "packed"
    arrays, more = test_causal.arrays_of(shape, dtype, state=both, ids=both)
    state = more.pop("initial_state", jnp.zeros((shape[0], 0, shape[2]), dtype))

    def run(x, w, bias, state):
        of_state = {"initial_state": state} if both else {}
        return jc.causal_conv1d(x, w, bias, activation="silu", **of_state, **more)

    y, pullback = jax.vjp(jax.jit(run), *arrays, state)
    dy = jnp.asarray(whole(5, y.shape, dtype, most=1))
    results = [y, *pullback(dy)[: 3 + both]]
    if both:
        x, w, bias = arrays
        dilation = more["dilation"]
        update = jc.causal_conv1d_update
        results += update(state, x[:, 0], w, bias, dilation=dilation)
    return results


def layer(engine, dtype, k):
    """What follows a convolution, and its gradient; odd K has no whole vectors."""
    args = [
        whole(i, shape, dtype, most=1)
        for i, shape in enumerate([(3, 9, 7, 8), (3, 3, 8, k), (k,), (3, 9, 7, k)])
    ]

    @jax.jit
    def both(x, w, bias, residual):
        def call(x, w, bias, residual):
            return jc.conv_bias_act(
                *(x, w, bias),
                residual=residual,
                activation="gelu",
                algorithm=engine,
            )

        y, pullback = jax.vjp(call, x, w, bias, residual)
        return y, *pullback(residual)

    return both(*args)


def forward_and_backward(fun, args, dy):
    """A layer with relu, and what its backward pass reads."""

    @jax.jit
    def both(args, dy):
        y, pullback = jax.vjp(functools.partial(fun, algorithm="implicit_gemm"), *args)
        return y, *pullback(dy)

    return both(args, dy)


def relu_layer(name):
    """With relu's derivative in a pass of its own."""
    case = test_layer_gradients.CASES[name]
    args, dy = test_layer_gradients.operands(case, "bfloat16", whole)

    def fun(*args, algorithm):
        return test_layer_gradients.layer(case, *args, algorithm=algorithm)

    return forward_and_backward(fun, args, dy)


def small_images(image, c, k):
    make = functools.partial(whole, most=1)
    args, dy = test_small_images.operands(image, c, k, make)
    return forward_and_backward(test_small_images.layer, args, dy)


def norm_act(name):
    layer = test_norm_act_kernel.LAYERS[name]
    given, dy = test_norm_act_kernel.operands(layer)

    @jax.jit
    def both(given, dy):
        call = test_norm_act_kernel.ours(layer, "channels")
        (y, sums), pullback = jax.vjp(call, given)
        zeros = jax.tree.map(jnp.zeros_like, sums)
        return jax.tree.leaves((y, sums, pullback((dy, zeros))))

    with pytest.MonkeyPatch.context() as patch:
        test_norm_act_kernel.take_kernels(patch)
        return both(given, dy)


def sums_of_channels(shape, dtype, samples=0):
    a, b = test_channel_sums.operands(shape, dtype)
    jitted = jax.jit(test_channel_sums.both, static_argnums=(2, 3))
    return jitted(a, b, dtype, samples)


def bias_gradient(dtype, k):
    return (bias_grad(jnp.asarray(whole(0, (300, k), dtype, most=1)), -1),)


def deformable(name, dtype):
    a = deform_oracle.arrays(deform_oracle.PROBLEMS[name]).cast(dtype)
    return [
        g for g in deform_oracle.run(deform_oracle.PROBLEMS[name], a) if g is not None
    ]


def deformable_forward(name, dtype):
    """From offsets to the biased result, multiplied by Hopper's kernels."""
    p = deform_oracle.TILED[name]
    a = deform_oracle.arrays(p).cast(dtype)
    options = dict(p.kwargs, algorithm="im2col_gemm")
    call = jax.jit(functools.partial(jc.deform_conv, **options))
    return (call(a.x, a.offset, a.w, a.bias, a.mask),)


WIDTHS = (("bfloat16", 24), ("bfloat16", 13), ("float32", 20))


def runs():
    """Calls by name: engine, kind, shape."""
    found = {}
    for name, case in SHAPES.items():
        precision = "highest" if name.startswith("true f32") else None
        ops = {}
        if name.startswith("wgrad"):
            ops = {"ops": ("wgrad",)}
        if name.startswith("wave"):  # wgrad is another's
            ops = {"ops": ("fprop", "dgrad")}
        for dtype in dtypes(name):
            call = functools.partial(convolution, case, dtype, precision, **ops)
            found[f"implicit_gemm, {name}, {dtype}"] = call
    for dtype, k in WIDTHS:
        found[f"kernel, bias gradient, {dtype}, K={k}"] = functools.partial(
            bias_gradient, dtype, k
        )
        for engine in ("implicit_gemm", "im2col_gemm"):
            call = functools.partial(layer, engine, dtype, k)
            found[f"{engine}, layer, {dtype}, K={k}"] = call
    for name in ("3x3, odd", "one pixel"):
        call = functools.partial(relu_layer, name)
        found[f"implicit_gemm, layer with relu, {name}"] = call
    for shape in test_small_images.SHAPES:
        call = functools.partial(small_images, *shape)
        found[f"implicit_gemm, small images, {shape}"] = call
    configs = test_halo_tiles.HALOS
    for i, (name, case) in enumerate(test_halo_tiles.CASES.items()):
        for j, dtype in enumerate(("bfloat16", "float32")):
            config = configs[(i + j) % len(configs)]
            call = functools.partial(halos, case, dtype, config)
            found[f"implicit_gemm, halos of {config}, {dtype}, {name}"] = call
    for name in test_norm_act_kernel.LAYERS:
        call = functools.partial(norm_act, name)
        found[f"implicit_gemm, layer, norm and activation, {name}"] = call
    for shape, kind in itertools.product(test_causal.SHAPES, ("plain", "packed")):
        for dtype in ("bfloat16", "float32"):
            call = functools.partial(causal, shape, dtype, kind)
            found[f"kernel, causal, {dtype}, {shape}, {kind}"] = call
    for shape in test_channel_sums.SHAPES[:-1]:
        for dtype in ("bfloat16", "float32"):
            call = functools.partial(sums_of_channels, shape, dtype)
            found[f"kernel, channel sums, {dtype}, {shape}"] = call
    for shape, samples in test_channel_sums.BY_SAMPLE:
        call = functools.partial(sums_of_channels, shape, "bfloat16", samples)
        found[f"kernel, channel sums, bfloat16, {shape}, {samples} by sample"] = call
    for name in deform_oracle.PROBLEMS:
        call = functools.partial(deformable, name, "float32")
        found[f"im2col_gemm, deformable, {name}"] = call
    for name in ("one_tap", "64", "groups"):
        for dtype in ("bfloat16", "float32"):
            call = functools.partial(deformable_forward, name, dtype)
            found[f"im2col_gemm, deformable, {name}, {dtype}"] = call
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("words", nargs="*", default=[""], help="of problems that run (default: all)")
    add("--without", nargs="*", default=[], metavar="WORD")
    options = parser.parse_args()
    chosen = {
        name: call
        for name, call in runs().items()
        if any(word in name for word in options.words)
        and not any(word in name for word in options.without)
    }
    with jax.default_device(jax.devices("cuda")[0]):
        wrong = 0
        for name, call in chosen.items():
            finite = all(np.isfinite(np.float32(a)).all() for a in call())
            wrong += not finite
            print(f"{name}: {'done' if finite else 'not finite'}", flush=True)
    print(f"sanitize_cuda: {len(chosen)} problems ran")
    # What the tools fill memory with shows where no result is read.
    if wrong:
        raise SystemExit(f"{wrong} have results that are not finite")


if __name__ == "__main__":
    main()
