"""With torch, ranks as processes over gloo: the answers of F.scaled_dot_product_attention."""

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
import xstage  # noqa: E402
from processes import spawn  # noqa: E402

# One bf16 rounding of the result (2^-9 relative) and of the weights in torch's own kernel.
BOUND = {torch.bfloat16: dict(rtol=1.6e-2, atol=1e-2), torch.float32: dict(rtol=1e-4, atol=1e-5)}


def sdpa(q, k, v, scale=None, mask=None):
    """[B, S, H, D] in float32, the whole sequence."""
    q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).transpose(1, 2)


def random(seed, *shape, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def mine(x, rows, rank):
    return torch.split(x, rows, 1)[rank]


CASES = {
    "even": dict(rows=[24, 24]),
    "uneven": dict(rows=[37, 20]),
    "grouped keys": dict(rows=[19, 18], heads=6, kv_heads=3),
    "joint text": dict(rows=[22, 13], text=7),
    "text in front": dict(rows=[22, 13], text=7, front=True),
    "two samples": dict(rows=[16, 16], batch=2),
    "unequal prompts": dict(rows=[16, 12], batch=2, lengths=[11, 28]),
    "float32": dict(rows=[16, 17], dtype=torch.float32),
}


def compare(rank, call, rows, batch=1, heads=4, kv_heads=None, text=0, front=False, lengths=None, dtype=torch.bfloat16):
    dim, s = 32, sum(rows)
    q = random(1, batch, s, heads, dim, dtype=dtype)
    k, v = (random(i, batch, s, kv_heads or heads, dim, dtype=dtype) for i in (2, 3))
    joint = [random(10 + i, batch, text, heads, dim, dtype=dtype) if text else None for i in range(3)]
    whole = [x if t is None else torch.cat([t, x] if front else [x, t], 1) for x, t in zip((q, k, v), joint)]
    mask = None
    if lengths is not None:
        mask = torch.arange(whole[1].shape[1])[None, None, None, :] < torch.tensor(lengths)[:, None, None, None]
        lengths = torch.tensor(lengths, dtype=torch.int32)
    expected = sdpa(*whole, mask=mask)
    image = expected[:, text:] if front else expected[:, :s]
    found = call(
        *(mine(x, rows, rank) for x in (q, k, v)), joint_q=joint[0], joint_k=joint[1], joint_v=joint[2],
        joint_strategy="front" if front else "rear", kv_lengths=lengths, seq_lens=rows,
    )  # fmt: skip
    out = found[0] if text else found
    torch.testing.assert_close(out.float(), mine(image, rows, rank), **BOUND[dtype])
    if text:
        joint_out = expected[:, :text] if front else expected[:, s:]
        torch.testing.assert_close(found[1].float(), joint_out, **BOUND[dtype])
    if batch == 1 and not torch.compiler.is_compiling():
        merged = out.flatten(2)
        assert merged.data_ptr() == out.data_ptr(), "the output projection would need a copy"


def eager_body(rank, world):
    with torch.no_grad():
        for name, case in CASES.items():
            try:
                compare(rank, xstage.ulysses_attention, **case)
            except Exception as error:
                raise AssertionError(f"{name}: {error}") from error


def test_eager_equals_sdpa_on_the_whole_sequence():
    with pytest.warns(RuntimeWarning, match="on the host"):
        spawn(eager_body, 2)


def compiled_body(rank, world):
    pg = torch.distributed.group.WORLD.group_name

    def block(q, k, v, **keywords):
        q, k = q * 1.0, k + 0  # something to fuse on both sides
        found = xstage.ulysses_attention(q, k, v, group=pg, **keywords)
        return tuple(x * 1.0 for x in found) if isinstance(found, tuple) else found * 1.0

    with torch.no_grad():
        for name in ("uneven", "joint text", "unequal prompts", "grouped keys"):
            torch._dynamo.reset()
            backend = "inductor" if name == "uneven" else "aot_eager"
            compare(rank, torch.compile(block, fullgraph=True, backend=backend), **CASES[name])


def test_compiled_without_a_graph_break():
    spawn(compiled_body, 2)


def chain_body(rank, world):
    """Three layers: a compiler keeps results for as long as it likes, and they must stay what they were."""
    rows = [9, 8]
    pg = torch.distributed.group.WORLD.group_name
    x = random(5, 1, sum(rows), 4, 16)

    def layers(x):
        a = xstage.ulysses_attention(x, x, x, group=pg, seq_lens=rows)
        b = xstage.ulysses_attention(a, x, x, group=pg, seq_lens=rows)
        c = xstage.ulysses_attention(b, x, x, group=pg, seq_lens=rows)
        return a + b + c

    with torch.no_grad():
        a = sdpa(x, x, x)
        b = sdpa(a.bfloat16(), x, x)
        expected = a + b + sdpa(b.bfloat16(), x, x)
        found = torch.compile(layers, fullgraph=True, backend="aot_eager")(mine(x, rows, rank))
    torch.testing.assert_close(found.float(), mine(expected, rows, rank), rtol=3e-2, atol=3e-2)


def test_a_compiled_chain_keeps_every_result():
    spawn(chain_body, 2)


def opcheck_body(rank, world):
    from xstage import library  # noqa: F401  defines the operators

    pg = torch.distributed.group.WORLD.group_name
    q, k, v = (random(i, 1, 6, 4, 16) for i in range(3))
    joint = [random(i, 1, 3, 4, 16) for i in range(3)]
    xstage.ulysses_attention(q, k, v, group=pg)
    torch.library.opcheck(torch.ops.xstage.ulysses_attention, (q, k, v, None, None, None, None), {"group": pg})
    torch.library.opcheck(
        torch.ops.xstage.ulysses_attention, (q, k, v, *joint, None), {"group": pg, "return_lse": True}
    )
    heads = q[:, :, :2].repeat(1, 2, 1, 1)
    torch.library.opcheck(
        torch.ops.xstage.attend_and_scatter, (heads, heads, heads, None),
        {"group": pg, "heads": 4, "kv_heads": 4, "seq_lens": [6, 6], "return_lse": True},
    )  # fmt: skip


def test_opcheck():
    spawn(opcheck_body, 2)


def misuse_body(rank, world):
    q, k, v = (random(i, 1, 6, 4, 16) for i in range(3))
    with pytest.raises(xstage.BadInput, match="forward only: q requires grad"):
        xstage.ulysses_attention(q.requires_grad_(), k, v)
    q = q.detach()
    with pytest.raises(xstage.BadInput, match="v is float32, this attention is bfloat16"):
        xstage.ulysses_attention(q, k, v.float())
    with pytest.raises(xstage.BadInput, match=r"transpose\(1, 2\)"):
        context = xstage.Ulysses(None, rows=4, heads=6, head_dim=16)
        context.attend(q, k, v)

    def compiled(q, k, v):
        return xstage.ulysses_attention(q, k, v, group="default_pg", attention=lambda q, k, v: q)

    with pytest.raises(Exception, match="register_attention"):
        torch.compile(compiled, fullgraph=True, backend="eager")(q, k, v)


def test_misuse():
    spawn(misuse_body, 2)


def kernels_body(rank, world):
    rows = [9, 7]
    x = random(8, 1, sum(rows), 4, 16)
    expected = mine(sdpa(x, x, x), rows, rank)

    def plain(q, k, v, scale):
        return F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), scale=scale).transpose(1, 2)

    def with_out(q, k, v, out, scale):
        out.copy_(plain(q, k, v, scale))

    local = mine(x, rows, rank)
    with torch.no_grad():
        for kernel in (plain, with_out, F.scaled_dot_product_attention):
            found = xstage.ulysses_attention(local, local, local, seq_lens=rows, attention=kernel)
            torch.testing.assert_close(found.float(), expected, **BOUND[torch.bfloat16])


def test_kernels_of_the_user_and_the_frameworks_function():
    with pytest.warns(RuntimeWarning, match="takes no out="):
        spawn(kernels_body, 2)
