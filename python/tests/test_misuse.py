"""Each misuse raises an error that says what to do."""

import numpy
import pytest
import reference
import xstage
from reference import normal


def qkv(*shape, dtype="float32"):
    return [normal(i, *shape, dtype=dtype) for i in range(3)]


def attempt(ranks, body, world=2):
    """The message of what both ranks raise."""

    def one(group):
        with pytest.raises(xstage.XstageError) as caught:
            body(group)
        return caught.value

    return ranks(world, one)


def test_layout(ranks):
    shape = (1, 4, 6, 8)  # [B, H, S, D] where [B, S, H, D] is expected
    q, k, v = qkv(*shape)

    def body(group):
        xstage.Ulysses(group, rows=6, heads=4, head_dim=8, dtype="float32").attend(q, k, v)

    for error in attempt(ranks, body):
        assert "expected [B, S, H, D] = [1, 6, 4, 8]" in str(error) and "transpose(1, 2)" in str(error)


def test_last_dimension(ranks):
    q, k, v = qkv(1, 6, 4, 8)
    strided = numpy.empty((1, 6, 4, 16), "float32")[..., ::2]

    def body(group):
        xstage.ulysses_attention(q, strided, v, group=group)

    for error in attempt(ranks, body):
        assert "k: the last dimension has stride 2" in str(error) and "contiguous()" in str(error)


def test_mixed_dtypes(ranks):
    q, k, v = qkv(1, 6, 4, 8)

    def body(group):
        xstage.ulysses_attention(q, k, v.astype("float16"), group=group)

    for error in attempt(ranks, body):
        assert "v is float16, this attention is float32" in str(error)


def test_a_group_of_one(ranks):
    q, k, v = qkv(1, 6, 4, 8)

    def body(group):
        xstage.ulysses_attention(q, k, v, group=group)

    (error,) = attempt(ranks, body, world=1)
    assert "group of one rank" in str(error) and "call the attention kernel itself" in str(error)


def test_different_shapes_per_rank_without_seq_lens(ranks):
    def body(group):
        xstage.ulysses_attention(*qkv(1, 6 + group.rank, 4, 8), group=group)

    for error in attempt(ranks, body):
        assert "disagree" in str(error) and "seq_lens" in str(error)


def test_seq_lens_that_do_not_fit(ranks):
    def body(group):
        xstage.ulysses_attention(*qkv(1, 6, 4, 8), group=group, seq_lens=[5, 5])

    for rank, error in enumerate(attempt(ranks, body)):
        assert f"seq_lens says 5 rows for rank {rank}, and q has 6" in str(error)


def test_after_close(ranks):
    q, k, v = qkv(1, 6, 4, 8)

    def body(group):
        context = xstage.Ulysses(group, rows=6, heads=4, head_dim=8, dtype="float32")
        context.close()
        context.close()
        context.attend(q, k, v)

    for error in attempt(ranks, body):
        assert isinstance(error, xstage.Closed) and "build a new one" in str(error)


def test_names(ranks):
    def kernel(group):
        xstage.Ulysses(group, rows=6, heads=4, head_dim=8, attention="flash")

    for error in attempt(ranks, kernel):
        assert "'flash': choose one of cudnn, xstage, reference" in str(error)

    def gpu_kernel(group):
        xstage.Ulysses(group, rows=6, heads=4, head_dim=8, attention="cudnn")

    for error in attempt(ranks, gpu_kernel):
        assert "the host has 'reference'" in str(error)

    def layout(group):
        xstage.Ulysses(group, rows=6, heads=4, head_dim=8, layout="diagonal")

    for error in attempt(ranks, layout):
        assert "choose one of auto, batched" in str(error)

    with pytest.raises(xstage.BadInput, match="build xstage.Group|there is no|resolve"):
        try:
            xstage.ulysses_attention(*qkv(1, 6, 4, 8), group="nobody")
        except Exception as error:  # torch, when it is loaded, looks the name up itself
            raise xstage.BadInput(f"resolve: {error}") from None


def test_fewer_heads_than_ranks_and_no_such_dtype(ranks):
    def heads(group):
        xstage.Ulysses(group, rows=6, heads=2, head_dim=8)

    for error in attempt(ranks, heads, world=3):
        assert isinstance(error, xstage.BadInput) and "head" in str(error)

    def dtype(group):
        xstage.Ulysses(group, rows=6, heads=2, head_dim=8, dtype="int8")

    for error in attempt(ranks, dtype):
        assert "bfloat16, float16 or float32" in str(error)


def test_text_and_lengths_must_be_as_built(ranks):
    q, k, v = qkv(1, 6, 4, 8)

    def text(group):
        xstage.Ulysses(group, rows=6, heads=4, head_dim=8, text=3, dtype="float32").attend(q, k, v)

    for error in attempt(ranks, text):
        assert "joint_q is missing" in str(error)

    def lengths(group):
        xstage.ulysses_attention(q, k, v, group=group, kv_lengths=numpy.array([3], "int64"))

    for error in attempt(ranks, lengths):
        assert "kv_lengths must be int32 [1]" in str(error)


def test_what_a_kernel_of_the_user_raises_arrives_and_the_peers_are_not_left_hanging(ranks):
    q, k, v = qkv(1, 6, 4, 8)

    def kernel(q, k, v, *, out, scale):
        raise ZeroDivisionError("from the kernel")

    def body(group):
        with pytest.raises(ZeroDivisionError, match="from the kernel"):
            xstage.ulysses_attention(q, k, v, group=group, attention=kernel)

    def one(group):
        body(group)

    ranks(2, one)


def test_a_kernel_that_returns_the_wrong_shape(ranks):
    q, k, v = qkv(1, 6, 4, 8)

    def kernel(q, k, v, scale):
        return q[:, :3]

    def body(group):
        xstage.ulysses_attention(q, k, v, group=group, attention=kernel)

    with pytest.warns(RuntimeWarning, match="takes no out="):
        for error in attempt(ranks, body):
            assert "kernel returned (1, 3, 2, 8), expected (1, 12, 2, 8)" in str(error)


def test_tables_and_weights_that_do_not_fit(ranks):
    q, k, v = qkv(1, 6, 4, 8)
    short = normal(1, 5, 8)

    def table(group):
        given = {"q": (None, xstage.Rotary(short, short))}
        xstage.ulysses_attention(q, k, v, group=group, transforms=given)

    for error in attempt(ranks, table):
        assert "5 rows for 6" in str(error) and "this rank's part" in str(error)

    def weight(group):
        xstage.ulysses_attention(q, k, v, group=group, transforms={"k": (xstage.Norm(normal(2, 16)), None)})

    for error in attempt(ranks, weight):
        assert "16 values, expected 8" in str(error)


def test_a_backend_that_does_not_exist(monkeypatch):
    with pytest.raises(xstage.BadInput, match="choose one of auto, host"):
        xstage.Group("x", 0, 1, backend="gpu")
    monkeypatch.setenv("XSTAGE_BACKEND", "gpu")
    with pytest.raises(xstage.BadInput, match="XSTAGE_BACKEND=gpu: choose one of auto, host"):
        xstage.Group("x", 0, 1)
    monkeypatch.setenv("XSTAGE_BACKEND", "host")
    with pytest.warns(RuntimeWarning, match="on the host, slowly: XSTAGE_BACKEND=host"), xstage.Group("x", 0, 1) as g:
        assert (g.backend, g.fallback_reason) == ("host", "XSTAGE_BACKEND=host")


def test_numpy_has_no_bfloat16(ranks):
    def body(group):
        xstage.stitch(group, rows=4, row_shape=(8,), dtype="bfloat16", like="numpy").receive(0)

    for error in attempt(ranks, body):
        assert "numpy has no bfloat16" in str(error)


def test_the_reference_of_these_tests_knows_uniform_weights():
    """Zero queries weigh all keys alike: the mean of v, and log(n)."""
    v = normal(9, 1, 5, 1, 4)
    out, lse = reference.attention(numpy.zeros_like(v), v, v)
    numpy.testing.assert_allclose(out, numpy.broadcast_to(v.mean(1, keepdims=True), v.shape), rtol=1e-6)
    numpy.testing.assert_allclose(lse, numpy.log(5))
