# SPDX-License-Identifier: Apache-2.0
"""A convolution with bias, scale, residual and activation, as one primitive."""
