# SPDX-License-Identifier: Apache-2.0
"""Convolutions by tiles that the rule may not choose for them."""

from jax_convbatch._select import choices


def given(monkeypatch, **configs):
    """From here on, operations run by these configurations of implicit_gemm:
    `given(monkeypatch, fprop="128x96")`."""

    def measured(op, *_):
        config = configs.get(op)
        return (choices.Choice("implicit_gemm", config, "given"),) if config else ()

    monkeypatch.setattr(choices, "measured", measured)
