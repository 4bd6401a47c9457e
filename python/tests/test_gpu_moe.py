"""The MoE layer over virtual ranks of one GPU: a dense sum over experts in torch."""

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.gpu]
torch = pytest.importorskip("torch", reason="torch is not installed")

import xstage  # noqa: E402
from test_gpu import group, random  # noqa: E402, F401

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 512, 256, 8, 2
BOUND = dict(rtol=3e-2, atol=3e-2)  # the hidden layer and the result are rounded to bf16


def reference(x, ids, gates, w1, w2):
    y = torch.zeros(x.shape, device="cuda")
    for e in range(EXPERTS):
        share = (gates * (ids == e)).sum(1, keepdim=True)
        gate, up = (x.float() @ w1[e].float().T).split(INTERMEDIATE, 1)
        y += share * ((torch.nn.functional.silu(gate) * up) @ w2[e].float().T)
    return y


def tokens_of(seed, count):
    x = random(seed, count, HIDDEN)
    g = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(EXPERTS, generator=g)[:TOP_K] for _ in range(count)]).int()
    ids[::5, 1] = -1
    return x, ids.cuda(), torch.rand(count, TOP_K, generator=g).cuda()


def test_virtual_ranks_eager_and_graphed(group):  # noqa: F811
    world = group.world
    w1 = random(1, EXPERTS, 2 * INTERMEDIATE, HIDDEN) / HIDDEN**0.5
    w2 = random(2, EXPERTS, HIDDEN, INTERMEDIATE) / INTERMEDIATE**0.5
    mine = [slice(r * EXPERTS // world, (r + 1) * EXPERTS // world) for r in range(world)]
    layer = xstage.MegaMoe(
        group, [w1[s].contiguous() for s in mine], [w2[s].contiguous() for s in mine], top_k=TOP_K, max_tokens=128
    )
    with torch.no_grad():
        each = [tokens_of(10 + r, 100 + r) for r in range(world)]
        xs, ids, gates = ([one[i] for one in each] for i in range(3))
        found = layer(xs, ids, gates)
        for r in range(world):
            torch.testing.assert_close(found[r].float(), reference(xs[r], ids[r], gates[r], w1, w2), **BOUND)

        # One graph for any number of tokens up to its tensors' length.
        counts = [torch.tensor([100 + r], dtype=torch.int32, device="cuda") for r in range(world)]
        outs = [torch.zeros_like(x) for x in xs]
        layer(xs, ids, gates, tokens_at=counts, out=outs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            layer(xs, ids, gates, tokens_at=counts, out=outs)
        for seed, fewer in ((30, 0), (40, 37)):
            for r in range(world):
                for old, new in zip((xs[r], ids[r], gates[r]), tokens_of(seed + r, 100 + r)):
                    old.copy_(new)
                counts[r].fill_(100 + r - fewer)
                outs[r].zero_()
            graph.replay()
            for r in range(world):
                n = 100 + r - fewer
                want = reference(xs[r][:n], ids[r][:n], gates[r][:n], w1, w2)
                torch.testing.assert_close(outs[r][:n].float(), want, **BOUND)
    layer.close()
    with pytest.raises(xstage.Closed):
        layer(xs, ids, gates)
