# SPDX-License-Identifier: Apache-2.0
"""The short causal convolution: primitives, how they run, what they are composed of."""
