# SPDX-License-Identifier: Apache-2.0
"""Networks of `python -m benchmarks models`, for our layers and for Flax's."""
