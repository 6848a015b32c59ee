# SPDX-License-Identifier: Apache-2.0
"""What "auto" takes on the CPU (`_select/rules.py`)."""

from dataclasses import replace

import numpy as np
from fake_gpus import problems

from jax_convbatch._select import rules


def test_1x1_of_few_channels_are_products_on_the_cpu():
    name = "fprop float32 far, products"  # 256x256 66->64, one tap
    (p,) = (p for found, p in problems(("float32",)) if found == name)
    p = replace(p, platform="cpu")
    for op, c, k, dtype, product in (
        ("fprop", 16, 16, "float32", True),
        ("fprop", 3, 40, "bfloat16", True),
        ("fprop", 16, 3, "float32", False),  # few sums a pixel
        ("fprop", 16, 64, "float32", False),
        ("fprop", 16, 16, "float64", False),
        ("dgrad", 16, 16, "float32", True),
        ("dgrad", 32, 32, "float32", False),
        ("wgrad", 3, 40, "float32", True),
        ("wgrad", 64, 64, "float32", False),
    ):
        geometry = p.geometry._replace(C=c, K=k)
        dtypes = dict(dtype=np.dtype(dtype), out_dtype=np.dtype(dtype))
        one = replace(p, op=op, geometry=geometry, **dtypes)
        engines = rules.CPU_PRODUCTS if product else rules.CPU
        assert rules.engines(one) == engines, (op, c, k)
        strided = replace(one, geometry=geometry._replace(stride=(1, 2, 2)))
        assert rules.engines(strided) == rules.CPU
    assert rules.why(one) == rules.WHY_PRODUCTS
