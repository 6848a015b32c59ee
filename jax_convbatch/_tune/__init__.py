# SPDX-License-Identifier: Apache-2.0
"""Measuring engines, and keeping the fastest."""
