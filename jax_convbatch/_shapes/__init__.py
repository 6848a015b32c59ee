# SPDX-License-Identifier: Apache-2.0
"""Geometries, without arrays."""
