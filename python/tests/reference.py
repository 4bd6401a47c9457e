"""Attention in float64, written down directly; independent of what is tested."""

import numpy


def attention(q, k, v, scale=None, kv_lengths=None):
    """[B, S, H, D] arrays; returns out and LSE [B, H, S]."""
    q, k, v = (numpy.asarray(x, dtype="float64") for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat(group, axis=2), v.repeat(group, axis=2)
    scores = numpy.einsum("bqhd,bkhd->bhqk", q, k) * (scale or q.shape[3] ** -0.5)
    if kv_lengths is not None:
        for b, n in enumerate(kv_lengths):
            scores[b, :, :, n:] = -numpy.inf
    most = scores.max(axis=-1, keepdims=True)
    weights = numpy.exp(scores - most)
    total = weights.sum(axis=-1, keepdims=True)
    out = numpy.einsum("bhqk,bkhd->bqhd", weights / total, v)
    return out, (most + numpy.log(total))[..., 0]


def split(x, rows):
    """Rows of [B, S, ...] for each rank."""
    ends = numpy.cumsum(rows)
    return [x[:, end - n : end] for n, end in zip(rows, ends)]


def normal(seed, *shape, dtype="float32"):
    return numpy.random.default_rng(seed).standard_normal(shape).astype(dtype)
