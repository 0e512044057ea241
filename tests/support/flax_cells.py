"""The gated cells of Flax with our parameters."""

import jax.numpy as jnp
from flax import linen as nn

CELLS = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}


def params_of(kind, ours):
    """Return the parameters of a Flax cell from those of our cell."""
    return (_gru if kind == "gru" else _lstm)(ours)


def _gru(ours):
    w, b = jnp.split(ours["in"]["kernel"], 3, 1), jnp.split(ours["in"]["bias"], 3)
    u = jnp.split(ours["recurrent"], 3, 1)
    theirs = {f"i{g}": {"kernel": w[i], "bias": b[i]} for i, g in enumerate("rzn")}
    theirs |= {f"h{g}": {"kernel": u[i]} for i, g in enumerate("rz")}
    theirs["hn"] = {"kernel": u[2], "bias": ours["recurrent_bias"]}
    return theirs


def _lstm(ours):
    w, b = jnp.split(ours["in"]["kernel"], 4, 1), jnp.split(ours["in"]["bias"], 4)
    u = jnp.split(ours["recurrent"], 4, 1)
    theirs = {f"i{g}": {"kernel": w[i]} for i, g in enumerate("ifgo")}
    return theirs | {f"h{g}": {"kernel": u[i], "bias": b[i]} for i, g in enumerate("ifgo")}
