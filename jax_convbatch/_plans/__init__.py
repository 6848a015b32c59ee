# SPDX-License-Identifier: Apache-2.0
"""Problems, and the kinds of plan that lower themselves."""
