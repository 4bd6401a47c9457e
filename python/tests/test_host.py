"""Ranks as threads on the host backend, tensors of numpy: the whole front but torch."""

import numpy
import pytest
import reference
import xstage
from reference import normal, split

# float32 throughout: the reference sums in float64, the plug in float32 over at most 100 keys.
TOLERANCE = dict(rtol=2e-5, atol=2e-6)


def whole(seed, rows, batch=1, heads=4, kv_heads=None, dim=8, dtype="float32"):
    s = sum(rows)
    q = normal(seed, batch, s, heads, dim, dtype=dtype)
    k = normal(seed + 1, batch, s, kv_heads or heads, dim, dtype=dtype)
    v = normal(seed + 2, batch, s, kv_heads or heads, dim, dtype=dtype)
    return q, k, v


CASES = {
    "even": dict(rows=[8, 8]),
    "uneven": dict(rows=[9, 8, 4]),
    "an empty rank": dict(rows=[7, 0, 5]),
    "grouped keys": dict(rows=[6, 5], heads=6, kv_heads=2),
    "one key head": dict(rows=[6, 5], heads=4, kv_heads=1),
    "heads that do not divide": dict(rows=[5, 5, 5], heads=7),
    "two samples": dict(rows=[6, 6], batch=2),
    "fp16": dict(rows=[9, 8], dtype="float16"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_outputs_and_lse_are_those_of_the_whole_sequence(ranks, case):
    rows = case["rows"]
    q, k, v = whole(1, **case)
    expected, lse = reference.attention(q, k, v)
    parts = [split(x, rows) for x in (q, k, v)]

    def body(group):
        mine = [numpy.ascontiguousarray(p[group.rank]) for p in parts]
        out, sums = xstage.ulysses_attention(*mine, group=group, seq_lens=rows, return_lse=True)
        assert out.strides[2] == out.itemsize * out.shape[3]  # (heads, head_dim) are mergeable
        return out.copy(), sums.copy()

    found = ranks(len(rows), body)
    tolerance = TOLERANCE if q.dtype == "float32" else dict(rtol=2e-3, atol=2e-3)
    numpy.testing.assert_allclose(numpy.concatenate([f[0] for f in found], 1), expected, **tolerance)
    numpy.testing.assert_allclose(numpy.concatenate([f[1] for f in found], 2), lse, **tolerance)


@pytest.mark.parametrize("strategy", ["front", "rear"])
def test_joint_text_joins_the_keys_and_comes_back_on_every_rank(ranks, strategy):
    rows, text = [7, 5], 3
    q, k, v = whole(2, rows)
    tq, tk, tv = (normal(20 + i, 1, text, 4, 8) for i in range(3))
    order = (lambda t, x: [t, x]) if strategy == "front" else (lambda t, x: [x, t])
    full = [numpy.concatenate(order(t, x), 1) for t, x in ((tq, q), (tk, k), (tv, v))]
    expected, lse = reference.attention(*full)
    image = slice(text, None) if strategy == "front" else slice(0, sum(rows))
    joint = slice(0, text) if strategy == "front" else slice(sum(rows), None)
    parts = [split(x, rows) for x in (q, k, v)]

    def body(group):
        found = xstage.ulysses_attention(
            *(p[group.rank].copy() for p in parts), group=group, joint_q=tq, joint_k=tk, joint_v=tv,
            joint_strategy=strategy, seq_lens=rows, return_lse=True,
        )  # fmt: skip
        return [x.copy() for x in found]

    found = ranks(2, body)
    numpy.testing.assert_allclose(numpy.concatenate([f[0] for f in found], 1), expected[:, image], **TOLERANCE)
    numpy.testing.assert_allclose(numpy.concatenate([f[2] for f in found], 2), lse[:, :, image], **TOLERANCE)
    for f in found:
        numpy.testing.assert_allclose(f[1], expected[:, joint], **TOLERANCE)
        numpy.testing.assert_allclose(f[3], lse[:, :, joint], **TOLERANCE)


def test_prompts_of_unequal_length_see_their_own_keys_only(ranks):
    rows, lengths = [6, 6], numpy.array([9, 12], "int32")
    q, k, v = whole(3, rows, batch=2)
    k[0, 9:], v[0, 9:] = numpy.nan, numpy.nan  # what lies behind a length must not matter
    clean = numpy.nan_to_num(k), numpy.nan_to_num(v)
    expected, _ = reference.attention(q, *clean, kv_lengths=lengths)
    parts = [split(x, rows) for x in (q, k, v)]

    def body(group):
        return xstage.ulysses_attention(
            *(p[group.rank].copy() for p in parts), group=group, kv_lengths=lengths
        ).copy()

    found = ranks(2, body)
    numpy.testing.assert_allclose(numpy.concatenate(found, 1), expected, **TOLERANCE)


def test_scale_views_of_a_fused_projection_and_out(ranks):
    rows = [5, 4]
    fused = normal(4, 1, sum(rows), 3, 4, 8)
    expected, _ = reference.attention(fused[:, :, 0], fused[:, :, 1], fused[:, :, 2], scale=0.7)
    parts = split(fused, rows)

    def body(group):
        mine = parts[group.rank]
        out = numpy.full((1, rows[group.rank], 4, 8), numpy.nan, "float32")
        found = xstage.ulysses_attention(
            *(mine[:, :, i] for i in range(3)), group=group, scale=0.7, seq_lens=rows, out=out
        )
        assert found is out
        return out

    numpy.testing.assert_allclose(numpy.concatenate(ranks(2, body), 1), expected, **TOLERANCE)


def test_attend_and_scatter_takes_what_a_framework_has_gathered(ranks):
    rows = [7, 6]
    q, k, v = whole(5, rows, heads=6, kv_heads=3)
    expected, _ = reference.attention(q, k, v)

    def body(group):
        context = xstage.Ulysses(group, rows=rows, heads=6, kv_heads=3, head_dim=8, dtype="float32", gathered_only=True)
        hq, hkv = context.local_heads()
        mine = [x[:, :, list(h)].copy() for x, h in ((q, hq), (k, hkv), (v, hkv))]
        first = context.attend_and_scatter(*mine).copy()
        again = xstage.attend_and_scatter(*mine, group=group, heads=6, kv_heads=3, seq_lens=rows)
        numpy.testing.assert_array_equal(first, again)
        return first

    numpy.testing.assert_allclose(numpy.concatenate(ranks(2, body), 1), expected, **TOLERANCE)


def rotated(x, cos, sin, even_odd):
    """Pairs (2i, 2i+1) of [B, S, H, D], written out; cos and sin are [S, D]."""
    c, s = (cos[:, 0::2], sin[:, 1::2]) if even_odd else (cos[:, 0::2], sin[:, 0::2])
    c, s = c[None, :, None], s[None, :, None]
    out = numpy.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * c - x[..., 1::2] * s
    out[..., 1::2] = x[..., 0::2] * s + x[..., 1::2] * c
    return out


@pytest.mark.parametrize("kind, table", [("head", "dimension"), ("full", "even_odd")])
def test_norms_and_rotations_on_the_way(ranks, kind, table):
    rows, eps = [7, 5], 1e-5
    q, k, v = whole(8, rows)
    angles = numpy.repeat(normal(80, 12, 4), 2, axis=1)
    cos, sin = numpy.cos(angles), numpy.sin(angles)
    weights = [1 + 0.1 * normal(81 + i, 8 if kind == "head" else 32) for i in range(2)]

    def prepared(x, w):
        over = x if kind == "head" else x.reshape(1, 12, 1, 32)
        x = (over / numpy.sqrt((over**2).mean(-1, keepdims=True) + eps) * w).reshape(x.shape)
        return rotated(x, cos, sin, table == "even_odd")

    expected, _ = reference.attention(prepared(q, weights[0]), prepared(k, weights[1]), v)
    plain, _ = reference.attention(q, k, v)
    parts = [split(x, rows) for x in (q, k, v)]

    def body(group):
        mine = [p[group.rank].copy() for p in parts]
        first = [0, 7][group.rank]
        tables = [t[first : first + rows[group.rank]].copy() for t in (cos, sin)]
        rotary = xstage.Rotary(*tables, table=table)
        given = {n: (xstage.Norm(w, eps, kind=kind), rotary) for n, w in zip("qk", weights)}
        found = xstage.ulysses_attention(*mine, group=group, seq_lens=rows, transforms=given).copy()
        # The next call has none, and must not keep these.
        return found, xstage.ulysses_attention(*mine, group=group, seq_lens=rows).copy()

    found = ranks(2, body)
    numpy.testing.assert_allclose(numpy.concatenate([f[0] for f in found], 1), expected, **TOLERANCE)
    numpy.testing.assert_allclose(numpy.concatenate([f[1] for f in found], 1), plain, **TOLERANCE)


def by_hand(q, k, v, scale):
    return reference.attention(q, k, v, scale)[0].astype(q.dtype)


def into_out(q, k, v, *, out, scale):
    out[...] = by_hand(q, k, v, scale)


def with_sums(q, k, v, scale):
    out, lse = reference.attention(q, k, v, scale)
    # [B, H, S, D] memory: a result need not be packed as ours is.
    return numpy.ascontiguousarray(out.astype(q.dtype).transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3), lse


@pytest.mark.parametrize(
    "kernel, way", [(into_out, "stitched"), (by_hand, "scattered"), (with_sums, "scattered")], ids=lambda x: str(x)
)
def test_kernels_of_the_user(ranks, kernel, way):
    rows, text = [6, 5], 2
    q, k, v = whole(6, rows, batch=2)
    joint = [normal(60 + i, 2, text, 4, 8) for i in range(3)]
    full = [numpy.concatenate(pair, 1) for pair in zip((q, k, v), joint)]
    expected, lse = reference.attention(*full)
    parts = [split(x, rows) for x in (q, k, v)]
    lse_too = kernel is with_sums

    def body(group):
        context = xstage.Ulysses(
            group, rows=rows, heads=4, head_dim=8, batch=2, text=text, dtype="float32", attention=kernel, lse=lse_too,
            layout="split",
        )
        assert context.backend.removesuffix("/copied") == f"host/{kernel.__name__}/{way}"
        found = context.attend(
            *(p[group.rank].copy() for p in parts), joint_q=joint[0], joint_k=joint[1], joint_v=joint[2],
            out=numpy.empty((2, rows[group.rank], 4, 8), "float32"),
        )  # fmt: skip
        return [x.copy() for x in found]

    found = ranks(2, body)
    numpy.testing.assert_allclose(numpy.concatenate([f[0] for f in found], 1), expected[:, : sum(rows)], **TOLERANCE)
    for f in found:
        numpy.testing.assert_allclose(f[1], expected[:, sum(rows) :], **TOLERANCE)
    if lse_too:
        sums = numpy.concatenate([f[2] for f in found], 2)
        numpy.testing.assert_allclose(sums, lse[:, :, : sum(rows)], **TOLERANCE)


def test_a_result_lives_until_the_next_call_and_poison_shows_who_reads_it_later(ranks):
    rows = [4, 4]
    q, k, v = whole(7, rows)
    parts = [split(x, rows) for x in (q, k, v)]

    def body(group):
        mine = [p[group.rank].copy() for p in parts]
        with xstage.Ulysses(group, rows=rows, heads=4, head_dim=8, dtype="float32", poison=True) as context:
            first = context.attend(*mine)
            before = first.copy()
            second = context.attend(*mine)
            assert numpy.isnan(first).all() and not numpy.isnan(before).any()
            numpy.testing.assert_array_equal(second, before)
            own = numpy.empty_like(before)
            context.attend(*mine, out=own)
            context.attend(*mine)
            numpy.testing.assert_array_equal(own, before)  # the caller's memory is the caller's
            group.barrier()

    ranks(2, body)


def test_a_stitched_range_sends_ordinary_stores_to_the_owners(ranks):
    rows = [5, 5, 5]

    def body(group):
        tensor = xstage.stitch(group, rows=rows, row_shape=(3, 16), dtype="float32", like="numpy")
        tensor.begin(0)
        everyone = tensor.range(0)
        everyone[:, :, group.rank] = 100 * group.rank + numpy.arange(3)[:, None, None]
        tensor.exchange(0)
        mine = tensor.receive(0).copy()
        group.barrier()
        return mine

    for rank, mine in enumerate(ranks(3, body)):
        for source in range(3):
            assert (mine[:, source] == 100 * source + rank).all()


def test_more_shapes_than_memory_is_kept_for(ranks):
    """Old shapes make room, by use and not by age: what was returned last is not freed for a new shape."""
    rows = [3, 2]
    text = [normal(40 + i, 1, 20, 4, 8) for i in range(3)]
    q, k, v = whole(7, rows)
    parts = [split(x, rows) for x in (q, k, v)]
    expected, _ = reference.attention(q, k, v)

    def body(group):
        mine = [numpy.ascontiguousarray(p[group.rank]) for p in parts]
        plain = xstage.ulysses_attention(*mine, group=group, seq_lens=rows)
        (first,) = group._contexts.values()
        for n in range(1, 21):
            out, joint = xstage.ulysses_attention(
                *mine, group=group, seq_lens=rows, joint_q=text[0][:, :n], joint_k=text[1][:, :n], joint_v=text[2][:, :n]
            )
            full = [numpy.concatenate([x, t[:, :n]], 1) for x, t in zip((q, k, v), text)]
            numpy.testing.assert_allclose(joint, reference.attention(*full)[0][:, sum(rows) :], **TOLERANCE)
            plain = xstage.ulysses_attention(*mine, group=group, seq_lens=rows)
        assert first in group._contexts.values() and len(group._contexts) <= 16
        return plain.copy()

    numpy.testing.assert_allclose(numpy.concatenate(ranks(2, body), 1), expected, **TOLERANCE)


@pytest.mark.parametrize("layout", ["batched", "padded", "split"])
def test_a_kernel_is_lent_no_dimension_that_repeats_but_shared_keys(ranks, layout):
    """Kernels refuse an output with a stride of 0, also where the dimension has one index."""
    rows = [6, 6] if layout == "batched" else [7, 5]
    q, k, v = whole(9, rows)
    expected, _ = reference.attention(q, k, v)
    parts = [split(x, rows) for x in (q, k, v)]
    lent = []  # looked at below: a failure in here would show memory that is gone

    def kernel(q, k, v, *, out, scale):
        lent.append((q.shape[0], q.strides, k.strides, v.strides, out.strides))
        out[...] = reference.attention(q, k, v, scale=scale)[0]

    def body(group):
        context = xstage.Ulysses(group, rows=rows, heads=4, head_dim=8, dtype="float32", attention=kernel, layout=layout)
        return context.attend(*(p[group.rank].copy() for p in parts)).copy()

    numpy.testing.assert_allclose(numpy.concatenate(ranks(2, body), 1), expected, **TOLERANCE)
    for batch, of_q, of_k, of_v, of_out in lent:
        assert 0 not in of_q + of_out
        assert (of_k[0] == 0) == (of_v[0] == 0) == (batch > 1)
