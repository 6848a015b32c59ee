# SPDX-License-Identifier: Apache-2.0
"""fprop, dgrad, wgrad and bgrad, with their rules."""
