# SPDX-License-Identifier: Apache-2.0
"""The native modules: which are there, and what they offer."""
