# SPDX-License-Identifier: Apache-2.0
"""Which engine runs a problem."""
