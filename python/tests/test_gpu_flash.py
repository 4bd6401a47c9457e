"""FlashAttention-3 of PyPI (fa3-fwd 0.0.3) storing to the ranks: bit for bit its own result."""

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.gpu]
torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("fa3_fwd._C", reason="fa3-fwd is not installed", exc_type=ImportError)

import xstage  # noqa: E402
from test_gpu import expect_replayed, group, random, shards  # noqa: E402, F401


@pytest.mark.parametrize("layout", ["auto", "batched", "padded", "split"])
def test_virtual_ranks_eager_and_graphed(group, layout):  # noqa: F811
    rows = [256] * group.world if layout == "batched" else [256 + 8 * r for r in range(group.world)]
    q, k, v = (random(i, 1, sum(rows), 8, 128) for i in range(3))
    expected, lse, *_ = torch.ops.fa3_fwd.fwd(q, k, v, softmax_scale=128**-0.5, num_splits=1)
    parts = [shards(x, rows) for x in (q, k, v)]
    context = xstage.Ulysses(group, rows=rows, heads=8, head_dim=128, attention="fa3", layout=layout)
    assert context.backend.startswith("local/fa3/")
    assert torch.equal(torch.cat([x.clone() for x in context.attend(*parts)], 1), expected)
    expect_replayed(context, parts, expected)
    context.close()
    out, sums = zip(*(xstage.ulysses_attention(
        *parts, group=group, seq_lens=rows, attention="fa3", return_lse=True
    )))  # fmt: skip
    assert torch.equal(torch.cat([x.clone() for x in out], 1), expected)
    torch.testing.assert_close(torch.cat([x.clone() for x in sums], 2), lse, rtol=1e-5, atol=1e-5)
