# SPDX-License-Identifier: Apache-2.0
"""The version, which tables of measurements and names of calls carry."""

__version__ = "0.1.0"
