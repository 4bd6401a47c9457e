"""A kernel of the user in Triton: it stores to `out` by its strides, and knows nothing of ranks."""

import triton
import triton.language as tl


@triton.jit
def _attention(q, k, v, out, scale, rows, keys, group,
               qb, qs, qh, kb, ks, kh, vb, vs, vh, ob, os, oh,
               DIM: tl.constexpr, M: tl.constexpr, N: tl.constexpr):  # fmt: skip
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    row = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)
    dim = tl.arange(0, DIM)
    queries = tl.load(q + batch * qb + head * qh + row[:, None] * qs + dim[None], row[:, None] < rows, 0.0)
    most = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    sums = tl.zeros((M, DIM), tl.float32)
    for start in range(0, keys, N):
        key = (start + tl.arange(0, N)).to(tl.int64)
        inside = key < keys
        block = tl.load(k + batch * kb + (head // group) * kh + key[None] * ks + dim[:, None], inside[None], 0.0)
        scores = tl.where(inside[None], tl.dot(queries, block) * scale, float("-inf"))
        peak = tl.maximum(most, tl.max(scores, 1))
        weights = tl.exp(scores - peak[:, None])
        shrink = tl.exp(most - peak)
        values = tl.load(v + batch * vb + (head // group) * vh + key[:, None] * vs + dim[None], inside[:, None], 0.0)
        sums = sums * shrink[:, None] + tl.dot(weights.to(values.dtype), values)
        total = total * shrink + tl.sum(weights, 1)
        most = peak
    place = out + batch * ob + head * oh + row[:, None] * os + dim[None]
    tl.store(place, (sums / total[:, None]).to(out.dtype.element_ty), row[:, None] < rows)


def triton_attention(q, k, v, *, out, scale):
    batch, rows, heads, dim = q.shape
    grid = (triton.cdiv(rows, 64), heads, batch)
    _attention[grid](
        q, k, v, out, scale, rows, k.shape[1], heads // k.shape[2],
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3], DIM=dim, M=64, N=64,
    )  # fmt: skip
