"""The MoE layer on two gloo ranks: a dense sum over experts in torch."""

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="torch is not installed")

import xstage  # noqa: E402
from processes import spawn  # noqa: E402

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 256, 128, 4, 2


def reference(x, ids, gates, w1, w2):
    """float32, expert by expert."""
    y = torch.zeros(x.shape[0], HIDDEN)
    for slot in range(TOP_K):
        for t in range(x.shape[0]):
            e = int(ids[t, slot])
            if e < 0:
                continue
            gate, up = (w1[e].float() @ x[t].float()).split(INTERMEDIATE)
            y[t] += gates[t, slot] * (w2[e].float() @ (torch.nn.functional.silu(gate) * up))
    return y


def body(rank, world):
    g = torch.Generator().manual_seed(0)
    w1 = (torch.randn(EXPERTS, 2 * INTERMEDIATE, HIDDEN, generator=g) / 16).bfloat16()
    w2 = (torch.randn(EXPERTS, HIDDEN, INTERMEDIATE, generator=g) / 11).bfloat16()
    mine = slice(rank * EXPERTS // world, (rank + 1) * EXPERTS // world)
    layer = xstage.MegaMoe(None, w1[mine].contiguous(), w2[mine].contiguous(), top_k=TOP_K, max_tokens=16)
    tokens = 7 + rank
    g.manual_seed(10 + rank)
    x = torch.randn(tokens, HIDDEN, generator=g).bfloat16()
    ids = torch.stack([torch.randperm(EXPERTS, generator=g)[:TOP_K] for _ in range(tokens)]).int()
    ids[3, 1] = -1
    gates = torch.rand(tokens, TOP_K, generator=g)
    expected = reference(x, ids, gates, w1, w2)
    bound = dict(rtol=3e-2, atol=3e-2)  # the hidden layer and the result are rounded to bf16
    with torch.no_grad():
        torch.testing.assert_close(layer(x, ids, gates).float(), expected, **bound)
        out = torch.full_like(x, float("nan"))
        assert layer(x, ids, gates, out=out) is out
        torch.testing.assert_close(out.float(), expected, **bound)

        def traced(x):
            return xstage.mega_moe(x + 0, ids, gates, layer=layer) * 1

        compiled = torch.compile(traced, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x).float(), expected, **bound)
        torch.library.opcheck(torch.ops.xstage.mega_moe, (x, ids, gates, None, None), {"layer": layer.name})

        # A shared expert: on each rank the first of its weights, with all tokens and weight 1.
        both = [torch.cat([w[:1], w[mine]]) for w in (w1, w2)]
        with xstage.MegaMoe(None, *both, top_k=TOP_K, max_tokens=16, shared=True) as second:
            assert second.experts == EXPERTS
            gate, up = (x.float() @ w1[0].float().T).split(INTERMEDIATE, dim=1)
            more = (torch.nn.functional.silu(gate) * up) @ w2[0].float().T
            torch.testing.assert_close(second(x, ids, gates).float(), expected + more, **bound)
            torch.distributed.barrier()

        with pytest.raises(xstage.BadInput, match="holds no expert"):
            xstage.MegaMoe(None, w1[:1], w2[:1], top_k=1, max_tokens=16, shared=True)
        with pytest.raises(xstage.BadInput, match=r"experts is int64 .* expected int32"):
            layer(x, ids.long(), gates)
        with pytest.raises(xstage.BadInput, match="max_tokens=16"):
            layer(torch.zeros(17, HIDDEN).bfloat16(), ids, gates)
        with pytest.raises(xstage.BadInput, match="weights is missing"):
            layer(x, ids, None)
    torch.distributed.barrier()
    layer.close()
    with pytest.raises(xstage.Closed, match="build a new one"):
        layer(x, ids, gates)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_two_ranks_hold_half_of_the_experts_each():
    spawn(body, 2)
