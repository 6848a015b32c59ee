# SPDX-License-Identifier: Apache-2.0
"""`jax_convbatch.tune`, and the classes of its results, for annotations."""

from jax_convbatch._tune.report import Row, Tuned
from jax_convbatch._tune.tune import tune

__all__ = ["Row", "Tuned", "tune"]
