# SPDX-License-Identifier: Apache-2.0
"""`jax_convbatch.explain`, and the classes of its results, for annotations."""

from jax_convbatch._explain.explain import explain
from jax_convbatch._explain.table import Explanation, Row

__all__ = ["Explanation", "Row", "explain"]
