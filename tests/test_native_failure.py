# SPDX-License-Identifier: Apache-2.0
"""What fails inside a native handler reaches the user with its geometry."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_convbatch._shapes.geometry import from_lax

NUMBERS = jax.lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
GEOMETRY = from_lax(
    (2, 8, 8, 4),
    (3, 3, 4, 6),
    (2, 6, 6, 6),
    window_strides=(1, 1),
    padding=((0, 0), (0, 0)),
    lhs_dilation=(1, 1),
    rhs_dilation=(1, 1),
    dimension_numbers=NUMBERS,
    feature_group_count=1,
)
ATTRIBUTES = GEOMETRY.attribute()


def fprop(engine, x_shape, workspace_bytes, geometry=ATTRIBUTES):
    """The handler itself, past every check of the Python side."""
    call = jax.ffi.ffi_call(
        f"jax_convbatch_{engine}_fprop",
        (
            jax.ShapeDtypeStruct((2, 6, 6, 6), np.float32),
            jax.ShapeDtypeStruct((workspace_bytes,), np.uint8),
        ),
    )
    attributes = dict(slice=np.int64(2), precision=np.int64(0))
    y, _ = call(
        jnp.ones(x_shape),
        jnp.ones((3, 3, 4, 6)),
        geometry=geometry,
        **attributes,
    )
    return y.block_until_ready()


def test_the_handler_runs_with_what_it_needs(engine):
    y = fprop(engine, (2, 8, 8, 4), 1 << 20)
    np.testing.assert_array_equal(y, np.full(y.shape, 36.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stride_w": None}, "a geometry has 25 attributes"),
        ({"stride_w": None, "stride_x": np.int64(1)}, "stride_x stands where stride_w"),
        ({"stride_w": np.int32(7)}, "stride_w, of 64 bits, is expected"),
    ],
)
def test_a_geometry_of_other_attributes_is_refused(column_engine, change, message):
    geometry = ATTRIBUTES | change
    geometry = {name: n for name, n in geometry.items() if n is not None}
    with pytest.raises(Exception, match=message):
        fprop(column_engine, (2, 8, 8, 4), 1 << 20, geometry)


@pytest.mark.parametrize(
    ("x_shape", "workspace_bytes", "message"),
    [
        ((2, 8, 8, 4), 256, "the workspace has 256 bytes where"),
        ((2, 8, 8, 3), 1 << 20, "x has 384 elements where 512 are expected"),
    ],
)
def test_an_error_names_operation_and_geometry(
    column_engine, x_shape, workspace_bytes, message
):
    with pytest.raises(jax.errors.JaxRuntimeError) as error:
        fprop(column_engine, x_shape, workspace_bytes)
    assert message in str(error.value)
    assert "fprop of x[2, 1, 8, 8, 4], w[1, 3, 3, 4, 6]" in str(error.value)


# Takes the place of cuBLAS's function of this name.
FAILING_GEMM = 'extern "C" int cublasLtMatmul(...) { return 13; }'
CONVOLVE = """
import jax.numpy as jnp, jax_convbatch as jc
x, w = jnp.ones((2, 8, 8, 4)), jnp.ones((3, 3, 4, 6))
jc.conv(x, w, padding="VALID", algorithm="im2col_gemm").block_until_ready()
"""


@pytest.mark.gpu
def test_what_cublas_reports_reaches_the_user(tmp_path):
    library = tmp_path / "failing.so"
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", library],
        input=FAILING_GEMM,
        text=True,
        check=True,
    )
    result = subprocess.run(
        [sys.executable, "-c", CONVOLVE],
        env=os.environ | {"LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1, result.stderr
    assert "cuBLAS failed with CUBLAS_STATUS_EXECUTION_FAILED" in result.stderr
    assert "fprop of x[2, 1, 8, 8, 4], w[1, 3, 3, 4, 6]" in result.stderr


@pytest.mark.parametrize("engine", ["implicit_gemm", "im2col_gemm"])
@pytest.mark.parametrize("op", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("odd", [0, 1, 2])
def test_dtypes_that_differ_are_refused(engine, op, odd):
    """No array is written as what it is not; only fprop's result may be wider."""
    shapes = {"x": (2, 8, 8, 4), "w": (3, 3, 4, 6), "y": (2, 6, 6, 6)}
    roles = {"fprop": "xwy", "dgrad": "ywx", "wgrad": "xyw"}[op]
    dtypes = ["bfloat16" if i == odd else "float16" for i in range(3)]
    arrays = [
        jax.ShapeDtypeStruct(shapes[role], dtype)
        for role, dtype in zip(roles, dtypes, strict=True)
    ]
    call = jax.ffi.ffi_call(
        f"jax_convbatch_{engine}_{op}",
        (arrays[2], jax.ShapeDtypeStruct((1 << 20,), np.uint8)),
    )
    with (
        jax.default_device(jax.devices("cpu")[0]),
        pytest.raises(jax.errors.JaxRuntimeError, match=f"dtypes that differ in {op}"),
    ):
        jax.block_until_ready(
            call(
                *(jnp.ones(a.shape, a.dtype) for a in arrays[:2]),
                geometry=GEOMETRY.attribute(),
                slice=np.int64(1),
                precision=np.int64(0),
            )
        )
