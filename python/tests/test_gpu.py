"""Virtual ranks on one GPU: bit for bit the plain kernel and a permutation, eager and captured."""

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.gpu]
torch = pytest.importorskip("torch", reason="torch is not installed")

import xstage  # noqa: E402


def random(seed, *shape, dtype=torch.bfloat16):
    g = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(shape, generator=g, device="cuda", dtype=torch.float32).to(dtype)


@pytest.fixture(params=[2, 4])
def group(request):
    with xstage.Group.local(request.param) as g:
        yield g


def shards(x, rows):
    return [t.contiguous() for t in torch.split(x, rows, 1)]


def expect_replayed(context, parts, expected):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = context.attend(*parts)
    for x in captured:
        x.zero_()
    graph.replay()
    assert torch.equal(torch.cat([x.clone() for x in captured], 1), expected)


def by_cudnn(q, k, v):
    """The framework's own call of the kernel, on one device."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
        out = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)))
    return out.transpose(1, 2)


@pytest.mark.parametrize("rows", ["even", "uneven"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cudnn_bit_for_bit_eager_and_graphed(group, rows, dtype):
    world = group.world
    rows = [256] * world if rows == "even" else [256 + 8 * r + (r % 2) for r in range(world)]
    q, k, v = (random(i, 1, sum(rows), 8, 128, dtype=dtype) for i in range(3))
    parts = [shards(x, rows) for x in (q, k, v)]
    context = xstage.Ulysses(group, rows=rows, heads=8, head_dim=128, dtype=dtype)
    found = torch.cat([x.clone() for x in context.attend(*parts)], 1)
    # The permutation by hand: each rank's heads of all rows, the kernel, rows back to their owners.
    heads = [context.local_heads(r)[0] for r in range(world)]
    gathered = [[x[:, :, h.start : h.stop].contiguous() for h in heads] for x in (q, k, v)]
    expected = torch.cat([by_cudnn(*(g[r] for g in gathered)) for r in range(world)], 2)
    assert torch.equal(found, expected), (found.float() - expected.float()).abs().max()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = context.attend(*parts)
    for seed in (10, 20, 30):
        fresh = [random(seed + i, 1, sum(rows), 8, 128, dtype=dtype) for i in range(3)]
        for old, new in zip(parts, fresh):
            for o, n in zip(old, shards(new, rows)):
                o.copy_(n)
        graph.replay()
        replayed = torch.cat([x.clone() for x in captured], 1)
        assert torch.equal(replayed, torch.cat([x.clone() for x in context.attend(*parts)], 1))
        assert torch.equal(replayed, by_cudnn(*fresh))
    context.close()


@pytest.mark.parametrize("layout", ["auto", "batched", "padded", "split"])
def test_a_kernel_of_the_user_is_bit_for_bit_the_plain_kernel_and_a_permutation(group, layout):
    from triton_kernel import triton_attention

    rows = [128] * group.world
    q, k, v = random(0, 1, sum(rows), 8, 64), random(1, 1, sum(rows), 4, 64), random(2, 1, sum(rows), 4, 64)
    expected = torch.empty_like(q)
    triton_attention(q, k, v, out=expected, scale=64**-0.5)
    context = xstage.Ulysses(
        group, rows=rows, heads=8, kv_heads=4, head_dim=64, attention=triton_attention, layout=layout
    )
    assert context.backend.startswith("local/triton_attention/")
    assert layout == "auto" or context.backend.endswith("/stitched")
    parts = [shards(x, rows) for x in (q, k, v)]
    assert torch.equal(torch.cat([x.clone() for x in context.attend(*parts)], 1), expected)
    expect_replayed(context, parts, expected)
    context.close()


def test_a_kernel_without_out_goes_through_the_scatter(group):
    rows = [128] * group.world
    q, k, v = (random(i, 1, sum(rows), 8, 64) for i in range(3))

    def sdpa(q, k, v, scale):
        out = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), scale=scale)
        return out.transpose(1, 2)

    expected = sdpa(q, k, v, 64**-0.5)
    context = xstage.Ulysses(group, rows=rows, heads=8, head_dim=64, attention=sdpa)
    assert context.backend == "local/sdpa/scattered"
    found = torch.cat([x.clone() for x in context.attend(*(shards(x, rows) for x in (q, k, v)))], 1)
    assert torch.equal(found, expected)
    context.close()


@pytest.mark.parametrize("shape", ["even", "uneven"])
def test_the_kernel_of_xstage_eager_and_graphed(group, shape):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the kernel is for Hopper")
    rows = [256] * group.world if shape == "even" else [256 + 8 * r + 1 for r in range(group.world)]
    q, k, v = (random(i, 1, sum(rows), 8, 128) for i in range(3))
    parts = [shards(x, rows) for x in (q, k, v)]
    context = xstage.Ulysses(group, rows=rows, heads=8, head_dim=128, attention="xstage")
    assert context.backend.startswith("local/xstage/")
    found = torch.cat([x.clone() for x in context.attend(*parts)], 1)
    torch.testing.assert_close(found.float(), by_cudnn(q, k, v).float(), rtol=1.6e-2, atol=4e-3)
    expect_replayed(context, parts, found)
    context.close()


def test_joint_text_lengths_and_sums(group):
    rows, text = [192] * group.world, 64
    q, k, v = (random(i, 2, sum(rows), 8, 64) for i in range(3))
    joint = [random(10 + i, 2, text, 8, 64) for i in range(3)]
    lengths = torch.tensor([sum(rows) + 64, sum(rows) + 17], dtype=torch.int32, device="cuda")
    full = [torch.cat([x, t], 1).float().transpose(1, 2) for x, t in zip((q, k, v), joint)]
    mask = torch.arange(sum(rows) + text, device="cuda")[None, None, None] < lengths[:, None, None, None]
    scores = (full[0] @ full[1].transpose(2, 3) * 64**-0.5).masked_fill(~mask, float("-inf"))
    expected = (scores.softmax(-1) @ full[2]).transpose(1, 2)
    found = xstage.ulysses_attention(
        *(shards(x, rows) for x in (q, k, v)), joint_q=[joint[0]] * group.world, joint_k=[joint[1]] * group.world,
        joint_v=[joint[2]] * group.world, kv_lengths=[lengths] * group.world, group=group, return_lse=True,
    )  # fmt: skip
    out = torch.cat([f[0].clone() for f in found], 1)
    torch.testing.assert_close(out.float(), expected[:, : sum(rows)], rtol=1.6e-2, atol=8e-3)
    sums = torch.cat([f[2].clone() for f in found], 2)
    torch.testing.assert_close(sums, scores.logsumexp(-1)[:, :, : sum(rows)], rtol=1e-3, atol=4e-3)
    for f in found:
        torch.testing.assert_close(f[1].float(), expected[:, sum(rows) :], rtol=1.6e-2, atol=8e-3)


def test_norms_and_rotations_on_the_way(group):
    """Wan's: a norm over the full width, pairs rotated in fp32; against the same in torch, before the exchange."""
    rows, width = [96 + r for r in range(group.world)], 8 * 64
    q, k, v = (random(i, 1, sum(rows), 8, 64) for i in range(3))
    weights = [1 + 0.1 * random(90 + i, width) for i in range(2)]
    angles = random(95, sum(rows), 32, dtype=torch.float32).repeat_interleave(2, 1)
    cos, sin = angles.cos(), angles.sin()

    def prepared(x, w):
        x = torch.nn.functional.rms_norm(x.flatten(2), (width,), w, 1e-6).unflatten(2, (8, 64))
        a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        c, s = cos[None, :, None, 0::2], sin[None, :, None, 1::2]
        return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2).to(x.dtype)

    parts = [shards(x, rows) for x in (q, k, v)]
    context = xstage.Ulysses(group, rows=rows, heads=8, head_dim=64)
    tables = [xstage.Rotary(c, s, table="even_odd") for c, s in zip(cos.split(rows), sin.split(rows))]
    given = [{n: (xstage.Norm(w, 1e-6, kind="full"), t) for n, w in zip("qk", weights)} for t in tables]
    fused = torch.cat([x.clone() for x in context.attend(*parts, transforms=given)], 1)
    before = [shards(prepared(x, w), rows) for x, w in zip((q, k), weights)] + [parts[2]]
    apart = torch.cat([x.clone() for x in context.attend(*before)], 1)
    torch.testing.assert_close(fused.float(), apart.float(), rtol=1.6e-2, atol=8e-3)
    assert not torch.equal(apart, torch.cat([x.clone() for x in context.attend(*parts)], 1))
    context.close()


def test_a_whole_block_in_one_graph(group):
    """Projections, attention, output projection without a copy, residual; captured, replayed on new input."""
    world, rows, width = group.world, [256] * group.world, 8 * 64
    weights = [random(50 + i, width, width) * width**-0.5 for i in range(4)]
    xs = [random(70 + r, 1, rows[r], width) for r in range(world)]

    def block():
        q, k, v = ([(x @ w).unflatten(2, (8, 64)) for x in xs] for w in weights[:3])
        outs = xstage.ulysses_attention(q, k, v, group=group)
        merged = [o.flatten(2) for o in outs]
        assert all(m.data_ptr() == o.data_ptr() for m, o in zip(merged, outs))
        return [x + m @ weights[3] for x, m in zip(xs, merged)]

    block()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = block()
    for seed in (100, 200):
        for r, x in enumerate(xs):
            x.copy_(random(seed + r, 1, rows[r], width))
        graph.replay()
        replayed = [x.clone() for x in captured]
        for a, b in zip(replayed, block()):
            assert torch.equal(a, b)


def test_a_capture_before_the_first_call_says_what_to_do(group):
    q = [random(r, 1, 40, 4, 64) for r in range(group.world)]
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(xstage.BadInput, match="make one eager call"):
        with torch.cuda.graph(graph):
            xstage.ulysses_attention(q, q, q, group=group)


def test_the_current_stream_is_used(group):
    rows = [128] * group.world
    x = random(1, 1, sum(rows), 4, 64)
    parts = shards(x, rows)
    expected = [t.clone() for t in xstage.ulysses_attention(parts, parts, parts, group=group)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        fresh = [torch.zeros_like(p) for p in parts]
        torch.cuda._sleep(50_000_000)
        for f, p in zip(fresh, parts):
            f.copy_(p)
        # Enqueued behind the sleep: on any other stream it would see zeros.
        found = [t.clone() for t in xstage.ulysses_attention(fresh, fresh, fresh, group=group)]
    torch.cuda.current_stream().wait_stream(side)
    for a, b in zip(found, expected):
        assert torch.equal(a, b)


def test_stitched_memory_takes_ordinary_stores(group):
    tensor = xstage.stitch(group, rows=64, row_shape=(4, 64), dtype="bfloat16")
    tensor.begin(0)
    everyone = tensor.range(0)
    pattern = random(1, group.world, 64, 4, 64)
    everyone.copy_(pattern)
    tensor.exchange(0)
    for rank in range(group.world):
        assert torch.equal(tensor.receive(0, rank), pattern[rank])
    tensor.close()
