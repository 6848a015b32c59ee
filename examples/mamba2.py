# SPDX-License-Identifier: Apache-2.0
"""A Mamba-2 language model, for training in parallel and for decoding by steps.

The layers are those of Dao and Gu, "Transformers are SSMs" (2024, arXiv:2405.21060):
`ssd` is the chunked algorithm of its section 6, `ssd_step` the recurrence it equals.
Axes: N samples, L positions, H heads of P channels, S state channels.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jax_convbatch import causal_conv1d, causal_conv1d_update


def ssd(x, dt, a, b, c, state, chunk):
    """y[l] = c[l] . h[l], where h[l] = exp(dt[l] a) h[l - 1] + dt[l] b[l] x[l].

    Args:
      x: [N, L, H, P].
      dt: [N, L, H], step sizes.
      a: [H], negative: how fast each head forgets.
      b, c: [N, L, S], what is written to the state and read from it.
      state: [N, H, S, P], h before the first position.
      chunk: positions that are computed as one matrix product.

    Returns:
      y, [N, L, H, P], and h after the last position.
    """
    n, length, heads, channels = x.shape
    missing = -length % chunk  # where dt is 0, the state stays as it is
    x, dt, b, c = (_chunks(v, missing, chunk) for v in (x, dt, b, c))
    x = dt[..., None] * x
    decay = jnp.cumsum(dt * a, axis=2)  # log, since the start of the chunk

    # Within a chunk: attention without softmax, weighted by the decay from j to i.
    since = decay[:, :, :, None] - decay[:, :, None]  # [N, chunks, i, j, H]
    causal = jnp.tril(jnp.ones((chunk, chunk), bool))[..., None]
    weights = jnp.exp(jnp.where(causal, since, -jnp.inf))
    scores = jnp.einsum("nkis,nkjs->nkij", c, b)
    y = jnp.einsum("nkij,nkijh,nkjhp->nkihp", scores, weights, x)

    # From chunk to chunk: each adds to the state, which decays.
    left = jnp.exp(decay[:, :, -1:] - decay)
    added = jnp.einsum("nkjs,nkjh,nkjhp->knhsp", b, left, x)
    kept = jnp.moveaxis(jnp.exp(decay[:, :, -1]), 1, 0)[..., None, None]

    def advance(state, of_chunk):
        kept, added = of_chunk
        return kept * state + added, state

    state, before = jax.lax.scan(advance, state, (kept, added))
    y += jnp.einsum("nkis,nkih,knhsp->nkihp", c, jnp.exp(decay), before)
    return y.reshape(n, -1, heads, channels)[:, :length], state


def _chunks(v, missing, chunk):
    n, _, *rest = v.shape
    v = jnp.pad(v, ((0, 0), (0, missing), *((0, 0) for _ in rest)))
    return v.reshape(n, -1, chunk, *rest)


def ssd_step(x, dt, a, b, c, state):
    """`ssd` of one position: the arguments without L."""
    x = dt[..., None] * x
    state = jnp.exp(dt * a)[..., None, None] * state
    state += jnp.einsum("ns,nhp->nhsp", b, x)
    return jnp.einsum("ns,nhsp->nhp", c, state), state


class State(NamedTuple):
    """What a block keeps of the positions before; its size has no L."""

    conv: jax.Array  # [N, taps - 1, channels], the last inputs of the convolution
    ssm: jax.Array  # [N, H, S, P]


class Mamba2(nnx.Module):
    """A block: norm, projection, convolution, SSD, gated norm, projection, sum.

    Args:
      width: channels of the block; it has twice as many inside.
      head: P, channels of a head.
      state: S, state channels, which all heads share.
      taps: of the convolution.
      chunk: positions that `ssd` computes as one matrix product.
      conv: the convolution and its step.
    """

    def __init__(
        self,
        width: int,
        *,
        head: int = 64,
        state: int = 32,
        taps: int = 4,
        chunk: int = 32,
        conv=(causal_conv1d, causal_conv1d_update),
        rngs: nnx.Rngs,
    ):
        inner, heads = 2 * width, 2 * width // head
        mixed = inner + 2 * state
        self.head, self.heads, self.state, self.chunk = head, heads, state, chunk
        self.splits = (inner, inner + mixed)
        self.conv, self.conv_step = conv
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        self.project = nnx.Linear(
            width, inner + mixed + heads, use_bias=False, rngs=rngs
        )
        key = rngs.params
        bound = taps**-0.5
        self.w = nnx.Param(
            jax.random.uniform(key(), (taps, mixed), minval=-bound, maxval=bound)
        )
        self.bias = nnx.Param(jnp.zeros(mixed))
        dt = jnp.exp(jax.random.uniform(key(), (heads,), minval=-6.9, maxval=-2.3))
        self.dt_bias = nnx.Param(jnp.log(jnp.expm1(dt)))  # softplus gives dt
        self.log_a = nnx.Param(
            jnp.log(jax.random.uniform(key(), (heads,), minval=1.0, maxval=16.0))
        )
        self.skip = nnx.Param(jnp.ones(heads))
        self.gated_norm = nnx.RMSNorm(inner, rngs=rngs)
        self.out = nnx.Linear(inner, width, use_bias=False, rngs=rngs)

    def start(self, samples: int) -> State:
        """The state before the first position."""
        taps, mixed = self.w.shape
        return State(
            jnp.zeros((samples, taps - 1, mixed)),
            jnp.zeros((samples, self.heads, self.state, self.head)),
        )

    def __call__(self, u, state: State):
        """u: [N, L, width] -> the same, and the state after it."""
        z, xbc, dt = self._in(u)
        xbc, conv = self.conv(
            xbc,
            self.w[...],
            self.bias[...],
            activation="silu",
            initial_state=state.conv,
            return_final_state=True,
        )
        x, b, c = self._split(xbc)
        y, ssm = ssd(x, dt, self._a(), b, c, state.ssm, self.chunk)
        return self._out(u, x, y, z), State(conv, ssm)

    def step(self, u, state: State):
        """The same for one position, u: [N, width]."""
        z, xbc, dt = self._in(u)
        xbc, conv = self.conv_step(
            state.conv, xbc, self.w[...], self.bias[...], activation="silu"
        )
        x, b, c = self._split(xbc)
        y, ssm = ssd_step(x, dt, self._a(), b, c, state.ssm)
        return self._out(u, x, y, z), State(conv, ssm)

    def _in(self, u):
        z, xbc, dt = jnp.split(self.project(self.norm(u)), self.splits, axis=-1)
        return z, xbc, nnx.softplus(dt + self.dt_bias)

    def _split(self, xbc):
        x, b, c = jnp.split(xbc, (self.splits[0], self.splits[0] + self.state), -1)
        return x.reshape(*x.shape[:-1], self.heads, self.head), b, c

    def _a(self):
        return -jnp.exp(self.log_a[...])

    def _out(self, u, x, y, z):
        y = (y + self.skip[:, None] * x).reshape(z.shape)
        return u + self.out(self.gated_norm(y * nnx.silu(z)))


class LanguageModel(nnx.Module):
    """Tokens [N, L] to the logits of the token that follows each, [N, L, tokens].

    Both methods take the states of all blocks and return those that follow.
    """

    def __init__(self, tokens: int, width: int, blocks: int, *, rngs, **options):
        self.embed = nnx.Embed(tokens, width, rngs=rngs)
        self.blocks = nnx.List(
            [Mamba2(width, rngs=rngs, **options) for _ in range(blocks)]
        )
        self.norm = nnx.RMSNorm(width, rngs=rngs)

    def start(self, samples: int) -> list[State]:
        return [block.start(samples) for block in self.blocks]

    def __call__(self, tokens, states):
        """All positions at once: to train, and to read a prompt."""
        u, after = self.embed(tokens), []
        for block, state in zip(self.blocks, states, strict=True):
            u, state = block(u, state)
            after.append(state)
        return self.embed.attend(self.norm(u)), after

    def step(self, tokens, states):
        """One position, tokens [N]: to decode."""
        u, after = self.embed(tokens), []
        for block, state in zip(self.blocks, states, strict=True):
            u, state = block.step(u, state)
            after.append(state)
        return self.embed.attend(self.norm(u)), after
