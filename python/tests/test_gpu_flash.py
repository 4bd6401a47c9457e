"""FlashAttention-3 (fa3-fwd 0.0.3) and -4 (flash-attn-4 4.0.0b36) storing to the ranks: bit for bit their own results."""

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.gpu]
torch = pytest.importorskip("torch", reason="torch is not installed")

import xstage  # noqa: E402
from test_gpu import expect_replayed, group, random, shards  # noqa: E402, F401


def _fa3():
    pytest.importorskip("fa3_fwd._C", reason="fa3-fwd is not installed", exc_type=ImportError)
    return lambda q, k, v: torch.ops.fa3_fwd.fwd(q, k, v, softmax_scale=q.shape[3] ** -0.5, num_splits=1)[:2]


def _fa4():
    reason = "flash-attn-4 is not installed"
    interface = pytest.importorskip("flash_attn.cute.interface", reason=reason, exc_type=ImportError)
    return lambda q, k, v: interface._flash_attn_fwd(q, k, v, softmax_scale=q.shape[3] ** -0.5, return_lse=True)[:2]


@pytest.fixture(params=[_fa3, _fa4], ids=["fa3", "fa4"])
def kernel(request):
    """Its name, and itself as f(q, k, v) -> out, lse."""
    return request.param.__name__[1:], request.param()


@pytest.mark.parametrize("layout", ["auto", "batched", "padded", "split"])
def test_virtual_ranks_eager_and_graphed(group, kernel, layout):  # noqa: F811
    name, plain = kernel
    rows = [256] * group.world if layout == "batched" else [256 + 8 * r for r in range(group.world)]
    q, k, v = (random(i, 1, sum(rows), 8, 128) for i in range(3))
    expected, lse = plain(q, k, v)
    parts = [shards(x, rows) for x in (q, k, v)]
    context = xstage.Ulysses(group, rows=rows, heads=8, head_dim=128, attention=name, layout=layout)
    assert context.backend.startswith(f"local/{name}/")
    assert torch.equal(torch.cat([x.clone() for x in context.attend(*parts)], 1), expected)
    expect_replayed(context, parts, expected)
    context.close()
    out, sums = zip(*(xstage.ulysses_attention(
        *parts, group=group, seq_lens=rows, attention=name, return_lse=True
    )))  # fmt: skip
    assert torch.equal(torch.cat([x.clone() for x in out], 1), expected)
    torch.testing.assert_close(torch.cat([x.clone() for x in sums], 2), lse, rtol=1e-5, atol=1e-5)
