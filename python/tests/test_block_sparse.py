"""Block-sparse attention on the host: float64 over the kept pairs, alone and over ranks."""

import numpy
import pytest
import reference
import xstage
from reference import normal

BLOCK = 128


def pairs(kept, rows, kv_rows):
    """Booleans by block as booleans by pair of rows."""
    return kept.repeat(BLOCK, -2).repeat(BLOCK, -1)[..., :rows, :kv_rows]


def expected(q, k, v, kept, scale=None):
    """kept: bool [B, H, blocks, blocks]. Rows without a key give 0 and -inf."""
    q, k, v = (numpy.asarray(x, "float64") for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat(group, 2), v.repeat(group, 2)
    scores = numpy.einsum("bqhd,bkhd->bhqk", q, k) * (scale or q.shape[3] ** -0.5)
    allowed = numpy.broadcast_to(pairs(kept, q.shape[1], k.shape[1]), scores.shape)
    weights = numpy.where(allowed, numpy.exp(numpy.where(allowed, scores, 0)), 0)
    total = weights.sum(-1)
    with numpy.errstate(divide="ignore", invalid="ignore"):
        out = numpy.einsum("bhqk,bkhd->bqhd", numpy.nan_to_num(weights / total[..., None]), v)
        return out, numpy.log(total)


def random_blocks(seed, *shape, density=0.5):
    return numpy.random.default_rng(seed).random(shape) < density


def qkv(rows, kv_rows=None, batch=1, heads=2, kv_heads=None, dim=16):
    kv = (batch, kv_rows or rows, kv_heads or heads, dim)
    return normal(0, batch, rows, heads, dim), normal(1, *kv), normal(2, *kv)


def test_a_mask_comes_back_from_its_bits():
    for blocks in (1, 31, 32, 33, 70):
        rows = (blocks - 1) * BLOCK + 1  # the last block holds a single row
        kept = random_blocks(blocks, 1, 3, blocks, blocks)
        mask = xstage.BlockMask.pack(kept, rows)
        assert mask.shape == (1, 3, blocks, (blocks + 31) // 32)
        assert (mask.unpack() == kept).all()
        again = xstage.BlockMask(mask.numpy(), rows)
        assert (again.numpy() == mask.numpy()).all()
    # By hand: key block v is bit v % 32 of word v // 32.
    kept = numpy.zeros((34, 34), bool)
    kept[5, [0, 31, 33]] = True
    words = xstage.BlockMask.pack(kept, 34 * BLOCK).numpy()
    assert words[0, 0, 5].tolist() == [0x80000001, 2] and words.sum(dtype="int64") == 0x80000003


def test_density_counts_pairs_of_rows():
    kept = numpy.array([[True, False], [True, True]])
    mask = xstage.BlockMask.pack(kept, 130)  # blocks of 128 and 2 rows
    assert mask.density() == pytest.approx((128 * 128 + 2 * 130) / 130**2)
    two = xstage.BlockMask.pack(numpy.stack([kept, numpy.ones_like(kept)]), 130)
    assert two.density(0, 1) == 1 and two.density() == pytest.approx((1 + mask.density()) / 2)


def test_text_rows_and_columns_are_dense():
    mask = xstage.BlockMask.pack(numpy.zeros((3, 4), bool), 300, 500).with_dense(0, 77)
    kept = mask.unpack()[0, 0]
    assert kept[0].all() and kept[:, 0].all() and kept.sum() == 4 + 2


@pytest.mark.parametrize("rows", [1, 127, 129, 257])
@pytest.mark.parametrize("density", [0.4, 1.0])
def test_kept_blocks_alone_count(rows, density):
    q, k, v = qkv(rows)
    blocks = (rows + BLOCK - 1) // BLOCK
    kept = random_blocks(rows, 1, 2, blocks, blocks, density=density)
    want, want_lse = expected(q, k, v, kept)
    found, lse = xstage.block_sparse_attention(q, k, v, xstage.BlockMask.pack(kept, rows), return_lse=True)
    numpy.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-6)
    numpy.testing.assert_allclose(lse, want_lse, rtol=2e-5, atol=2e-6)


def test_masks_of_batches_key_heads_and_heads_are_their_own():
    q, k, v = qkv(260, 390, batch=2, heads=8, kv_heads=2)
    for batches in (1, 2):
        for heads in (1, 2, 8):
            kept = random_blocks(heads, batches, heads, 3, 4)
            want, _ = expected(q, k, v, kept.repeat(8 // heads, 1), scale=0.3)
            out = numpy.full_like(q, numpy.nan)
            mask = xstage.BlockMask.pack(kept, 260, 390)
            assert xstage.block_sparse_attention(q, k, v, mask, scale=0.3, out=out) is out
            numpy.testing.assert_allclose(out, want, rtol=2e-5, atol=2e-6)


def test_the_plan_of_a_mask_serves_other_tensors():
    kept = random_blocks(3, 1, 1, 2, 2)
    mask = xstage.BlockMask.pack(kept, 200)
    for seed in range(3):
        q, k, v = (normal(seed * 3 + i, 1, 200, 2, 16) for i in range(3))
        want, _ = expected(q, k, v, kept)
        numpy.testing.assert_allclose(xstage.block_sparse_attention(q, k, v, mask), want, rtol=2e-5, atol=2e-6)
    assert len(mask._plans) == 1


def test_blocks_that_are_not_kept_may_hold_anything():
    q, k, v = qkv(256)
    kept = numpy.array([[True, False], [True, False]])
    want = xstage.block_sparse_attention(q, k, v, xstage.BlockMask.pack(kept, 256))
    k[:, 128:], v[:, 128:] = numpy.nan, numpy.inf
    found = xstage.block_sparse_attention(q, k, v, xstage.BlockMask.pack(kept, 256))
    assert (found == want).all() and numpy.isfinite(found).all()


@pytest.mark.parametrize("rows", [[150, 150], [131, 70, 99]])
@pytest.mark.parametrize("heads_of_mask", [1, 3, 6])
def test_over_ranks_each_head_has_its_own_mask(ranks, rows, heads_of_mask):
    q, k, v = qkv(300, batch=2, heads=6, kv_heads=3)
    first, second = (random_blocks(seed, 2, heads_of_mask, 3, 3) for seed in (1, 2))
    want = [expected(q, k, v, kept.repeat(6 // heads_of_mask, 1)) for kept in (first, second)]
    masks = [xstage.BlockMask.pack(kept, 300) for kept in (first, second)]
    parts = [reference.split(x, rows) for x in (q, k, v)]

    def body(group):
        mine = [p[group.rank] for p in parts]
        found = []
        for mask in (*masks, masks[0]):
            out, lse = xstage.ulysses_attention(
                *mine, group=group, seq_lens=rows, attention=mask, return_lse=True
            )
            found.append((out.copy(), lse.copy()))
        assert len(group._contexts) == 1  # masks come and go, the memory stays
        with xstage.Ulysses(group, rows=rows, heads=6, kv_heads=3, head_dim=16, batch=2, dtype="float32",
                            attention=masks[1]) as context:  # fmt: skip
            assert "block_sparse" in context.backend
            found.append((context.attend(*mine).copy(), None))
            group.barrier()
        return found

    results = ranks(len(rows), body)
    for call, which in enumerate((0, 1, 0, 1)):
        out = numpy.concatenate([r[call][0] for r in results], 1)
        numpy.testing.assert_allclose(out, want[which][0], rtol=2e-5, atol=2e-6)
        if call < 3:
            lse = numpy.concatenate([r[call][1] for r in results], 2)
            numpy.testing.assert_allclose(lse, want[which][1], rtol=2e-5, atol=2e-6)


def test_heads_are_put_in_an_order_that_loads_ranks_evenly():
    kept = numpy.zeros((6, 4, 4), bool)
    for head, blocks in enumerate((16, 10, 9, 8, 7, 4)):  # of 16; 16 + 7 + 4 = 10 + 9 + 8
        kept[head].flat[:blocks] = True
    mask = xstage.BlockMask.pack(kept, 512)
    order, before, after = mask.balance(2)
    assert before == pytest.approx(35 / 27) and after == pytest.approx(1)
    assert sorted(order) == list(range(6))
    assert (mask.with_heads(order).unpack()[0] == kept[order]).all()
    loads = kept.sum((1, 2))[order]
    assert loads[:3].sum() == loads[3:].sum() == 27
    with pytest.raises(xstage.BadInput, match="ranks"):
        mask.balance(4)
    with pytest.raises(xstage.BadInput, match="no head 6"):
        mask.with_heads([6])


def test_misuse_says_what_to_do(ranks):
    q, k, v = qkv(200)
    mask = xstage.BlockMask(None, 200)
    with pytest.raises(xstage.BadInput, match=r"words are \[1, 1, 1, 1\], expected \[batches, heads, 2, 1\]"):
        xstage.BlockMask(numpy.zeros((1, 1, 1, 1), "uint32"), 200)
    with pytest.raises(xstage.BadInput, match="behind the last key block"):
        xstage.BlockMask(numpy.full((1, 1, 2, 1), 4, "uint32"), 200)
    with pytest.raises(xstage.BadInput, match="BlockMask.pack"):
        xstage.BlockMask(numpy.zeros((1, 1, 2, 1), "float32"), 200)
    with pytest.raises(xstage.BadInput, match=r"\[2, 3\] blocks, expected \[2, 2\]"):
        xstage.BlockMask.pack(numpy.zeros((2, 3), bool), 200)
    with pytest.raises(xstage.BadInput, match="for 200 query rows and 200 keys, not 100 and 200"):
        xstage.block_sparse_attention(q[:, :100], k, v, mask)
    with pytest.raises(xstage.BadInput, match="3 heads, not 1, 2 or 2"):
        xstage.block_sparse_attention(q, k, v, xstage.BlockMask(None, 200, heads=3))
    with pytest.raises(xstage.BadInput, match="last dimension has stride 2"):
        xstage.block_sparse_attention(q[..., ::2], k[..., :8].copy(), v[..., :8].copy(), mask)
    with pytest.raises(xstage.BadInput, match="k is float16"):
        xstage.block_sparse_attention(q, k.astype("float16"), v, mask)

    def body(group):
        with pytest.raises(xstage.BadInput, match="all ranks together have 400"):
            xstage.ulysses_attention(q, k, v, group=group, attention=mask)
        whole = xstage.BlockMask(None, 400)
        text = normal(5, 1, 4, 2, 16)
        with pytest.raises(xstage.BadInput, match="neither with text rows"):
            xstage.ulysses_attention(q, k, v, group=group, attention=whole, joint_q=text, joint_k=text, joint_v=text)
        with pytest.raises(xstage.BadInput, match="without"):
            with xstage.Ulysses(group, rows=200, heads=2, head_dim=16, dtype="float32") as context:
                context.set_mask(whole)

    ranks(2, body)


def test_torch_operator():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q, k, v = (torch.from_numpy(x).bfloat16() for x in qkv(200, dim=32))
    kept = random_blocks(7, 1, 2, 2, 2)
    kept[..., 0] = True
    mask = xstage.BlockMask.pack(torch.from_numpy(kept), 200)
    want, want_lse = expected(*(x.float().numpy() for x in (q, k, v)), kept)
    out, lse = xstage.block_sparse_attention(q, k, v, mask, return_lse=True)
    bound = dict(rtol=1e-2, atol=4e-3)  # one rounding to bf16
    torch.testing.assert_close(out.double(), torch.from_numpy(want), **bound)
    torch.testing.assert_close(lse.double(), torch.from_numpy(want_lse), rtol=2e-5, atol=2e-5)

    from xstage import library  # noqa: F401

    words = mask.torch()
    torch.library.opcheck(torch.ops.xstage.block_sparse_attention, (q, k, v, words), {"return_lse": True})
    torch.library.opcheck(torch.ops.xstage.block_sparse_attention, (q, k, v, words), {"scale": 0.5})

    def block(q, words):
        return xstage.block_sparse_attention(q + 0, k, v, words) * 1

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, words), out)
    other = xstage.BlockMask.pack(~kept, 200).torch()
    assert torch.equal(compiled(q, other), xstage.block_sparse_attention(q, k, v, other))
    with pytest.raises(xstage.BadInput, match="forward only"):
        xstage.block_sparse_attention(q.float().requires_grad_(), k.float(), v.float(), mask)
