# SPDX-License-Identifier: Apache-2.0
"""Partitions over devices."""
