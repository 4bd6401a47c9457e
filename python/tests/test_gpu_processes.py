"""Two processes on one GPU, as two on two would do it: torch's group, the process backend, graphs, compiled code."""

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.gpu]
torch = pytest.importorskip("torch", reason="torch is not installed")

import xstage  # noqa: E402
import xstage.group  # noqa: E402
from processes import spawn  # noqa: E402


def random(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to("cuda", torch.bfloat16)


def sdpa(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


def body(rank, world):
    torch.cuda.set_device(0)
    rows = [200, 184]
    q, k, v = (random(i, 1, sum(rows), 8, 64) for i in range(3))
    mine = [x.split(rows, 1)[rank].contiguous() for x in (q, k, v)]
    expected = sdpa(q, k, v).split(rows, 1)[rank].float()
    bound = dict(rtol=1.6e-2, atol=8e-3)
    with torch.no_grad():
        found = xstage.ulysses_attention(*mine, seq_lens=rows)
        group = xstage.group.resolve(None)
        assert (group.backend, group.fallback_reason) == ("process", "")
        torch.testing.assert_close(found.float(), expected, **bound)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = xstage.ulysses_attention(*mine, seq_lens=rows)
        captured.zero_()
        torch.cuda.synchronize()
        torch.distributed.barrier()  # a peer may store from its replay on
        graph.replay()
        torch.testing.assert_close(captured.float(), expected, **bound)
        torch.cuda.synchronize()

        pg = torch.distributed.group.WORLD.group_name
        compiled = torch.compile(
            lambda q, k, v: xstage.ulysses_attention(q * 1, k, v, group=pg, seq_lens=rows) + 0, fullgraph=True
        )
        torch.testing.assert_close(compiled(*mine).float(), expected, **bound)
        torch.library.opcheck(
            torch.ops.xstage.ulysses_attention,
            (*mine, None, None, None, None),
            {"group": pg, "seq_lens": rows, "return_lse": True},
        )
    group.check()


def test_two_processes():
    spawn(body, 2, timeout=100, backend="auto")
