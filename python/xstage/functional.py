"""Ulysses attention as one call: a context per shape is made on first use and kept with the group."""

from __future__ import annotations

import sys
import warnings
from typing import Callable, Sequence

from xstage import _arrays
from xstage import group as _group
from xstage._errors import BadInput
from xstage.attention import _registered
from xstage.block_sparse import BlockMask
from xstage.ulysses import Ulysses

_MOST_CONTEXTS = 16
_warned: set = set()


def ulysses_attention(
    q,
    k,
    v,
    *,
    group=None,
    scale: float | None = None,
    kv_lengths=None,
    joint_q=None,
    joint_k=None,
    joint_v=None,
    joint_strategy: str = "rear",
    seq_lens: Sequence[int] | None = None,
    kv_seq_lens: Sequence[int] | None = None,
    out=None,
    return_lse: bool = False,
    attention: str | Callable | None = None,
    transforms: dict | None = None,
):
    """Attention over the whole sequence of which each rank holds some rows. Collective, forward only.

    q: [B, S_local, H, D]; k, v: [B, S_local, H_kv, D], H_kv a divisor of H. bfloat16 or float16 (float32 on
        the host), last dimension contiguous; columns of a fused projection are fine.
    group: xstage.Group, torch process group, the name of either, or None for torch's default group.
    scale: default 1/sqrt(D). kv_lengths: int32 [B], valid keys of each sample from the first one.
    joint_q, joint_k, joint_v: text rows that all ranks hold alike, [B, T, H, D]; joint_strategy: "front" or
        "rear", where they stand among the keys ("rear" with kv_lengths).
    seq_lens: S_local of every rank; needed when they differ. kv_seq_lens: the same for k and v (default: seq_lens).
    out: memory for the result, at the price of one copy. attention: see xstage.Ulysses; block masks may differ
        from call to call. transforms: norms and rotations of q and k on the way, see xstage.Ulysses.attend; not
        under torch.compile.

    Returns out [B, S_local, H, D]; with text (out, joint_out); with return_lse also the fp32 LSE
    [B, H, S_local] (and [B, H, T]). The result is lent until the next call with the same shapes;
    under torch.compile it is a tensor of its own (one copy).

    The first call of a shape sets up memory on all ranks; make it before capturing a CUDA graph. Ranks must
    make the same calls in the same order. Raises BadInput, Unsupported, EnvironmentBroken or TimedOut.
    """
    if "torch" in sys.modules and sys.modules["torch"].compiler.is_compiling():
        from xstage import library

        if transforms is not None:
            raise BadInput("transforms are for eager code and CUDA graphs; compiled code normalises and rotates itself")
        return library.traced(
            q, k, v, joint_q, joint_k, joint_v, kv_lengths, out, group=group, scale=scale,
            joint_strategy=joint_strategy, seq_lens=seq_lens, kv_seq_lens=kv_seq_lens, return_lse=return_lse,
            attention=attention,
        )  # fmt: skip
    g = _group.resolve(group)
    if g.backend == "host" and _arrays.is_torch(q) and q.is_cuda:
        if transforms is not None:
            raise BadInput(f"transforms need the group's memory on the GPU, and it is on the host: {g.fallback_reason}")
        return _by_the_host(
            g, q, k, v, joint_q, joint_k, joint_v, kv_lengths, out, scale=scale, joint_strategy=joint_strategy,
            seq_lens=seq_lens, kv_seq_lens=kv_seq_lens, return_lse=return_lse, attention=attention,
        )  # fmt: skip
    context = context_for(
        g, q, k, joint_q, joint_k, kv_lengths is not None, joint_strategy, seq_lens, kv_seq_lens, return_lse,
        attention,
    )  # fmt: skip
    _set_mask(context, attention)
    return context.attend(
        q, k, v, joint_q=joint_q, joint_k=joint_k, joint_v=joint_v, kv_lengths=kv_lengths, scale=scale, out=out,
        transforms=transforms,
    )  # fmt: skip


def attend_and_scatter(
    q,
    k,
    v,
    *,
    group=None,
    heads: int,
    seq_lens: Sequence[int],
    kv_seq_lens: Sequence[int] | None = None,
    kv_heads: int | None = None,
    scale: float | None = None,
    kv_lengths=None,
    out=None,
    return_lse: bool = False,
    attention: str | Callable | None = None,
):
    """Attention on q, k, v that the framework has gathered by heads; its second all-to-all is gone.

    q: [B, S, H of this rank, D], k, v the same with key heads; heads, kv_heads: of the whole model. Returns
    this rank's rows of all heads, [B, seq_lens[rank], heads, D], as ulysses_attention does.
    """
    g = _group.resolve(group)
    one = q[0] if isinstance(q, (list, tuple)) else q
    key = (
        "gathered", one.shape, _dtype_key(one), heads, kv_heads, tuple(seq_lens),
        None if kv_seq_lens is None else tuple(kv_seq_lens), kv_lengths is not None, return_lse,
        _plug_key(attention),
    )  # fmt: skip
    context = _cached(
        g,
        key,
        lambda: dict(
            rows=list(seq_lens), rows_kv=kv_seq_lens, heads=heads, kv_heads=kv_heads, head_dim=one.shape[3],
            batch=one.shape[0], dtype=_arrays.describe(one, "q").dtype, lse=return_lse,
            lengths=kv_lengths is not None, attention=attention, gathered_only=True,
        ),
    )  # fmt: skip
    _set_mask(context, attention)
    return context.attend_and_scatter(q, k, v, kv_lengths=kv_lengths, scale=scale, out=out)


def context_for(
    group, q, k, joint_q, joint_k, lengths, joint_strategy, seq_lens, kv_seq_lens, return_lse, attention
) -> Ulysses:
    """The context of these shapes, made on first use. Collective then."""
    if isinstance(q, (list, tuple)):
        if seq_lens is None:
            seq_lens = [x.shape[1] for x in q]
        if kv_seq_lens is None and [x.shape[1] for x in k] != list(seq_lens):
            kv_seq_lens = [x.shape[1] for x in k]
        q, k = q[0], k[0]
        joint_q = joint_q[0] if joint_q is not None else None
        joint_k = joint_k[0] if joint_k is not None else None
    key = (
        q.shape, k.shape, _dtype_key(q), None if joint_q is None else joint_q.shape[1],
        None if joint_k is None else joint_k.shape[1], lengths, joint_strategy,
        None if seq_lens is None else tuple(seq_lens), None if kv_seq_lens is None else tuple(kv_seq_lens),
        return_lse, _plug_key(attention),
    )  # fmt: skip

    def arguments():
        for x, name in ((q, "q"), (k, "k")):
            if len(x.shape) != 4:
                raise BadInput(f"{name} is {list(x.shape)}, expected [B, S_local, H, D]")
        if joint_strategy not in ("front", "rear"):
            raise BadInput(f"joint_strategy {joint_strategy!r}: choose 'front' or 'rear'")
        rows = list(seq_lens) if seq_lens is not None else q.shape[1]
        rows_kv = kv_seq_lens
        if rows_kv is None and k.shape[1] != q.shape[1]:
            rows_kv = k.shape[1]
        mine = rows if isinstance(rows, int) else _checked(rows, group)[group.rank]
        if group.backend != "local" and mine != q.shape[1]:
            raise BadInput(f"seq_lens says {mine} rows for rank {group.rank}, and q has {q.shape[1]}")
        return dict(
            rows=rows, rows_kv=rows_kv, heads=q.shape[2], kv_heads=k.shape[2], head_dim=q.shape[3],
            batch=q.shape[0], text=0 if joint_q is None else joint_q.shape[1],
            text_kv=0 if joint_k is None else joint_k.shape[1], text_front=joint_strategy == "front",
            dtype=_arrays.describe(q, "q").dtype, lse=return_lse, lengths=lengths, attention=attention,
        )  # fmt: skip

    return _cached(group, key, arguments)


def _checked(rows, group):
    if len(rows) != group.world:
        raise BadInput(f"seq_lens has {len(rows)} entries for {group.world} ranks")
    return rows


def _plug_key(attention):
    """Contexts differ by their kernel; all block masks are one kernel."""
    return "a block mask" if isinstance(_by_name(attention), BlockMask) else attention


def _by_name(attention):
    return _registered.get(attention, attention) if isinstance(attention, str) else attention


def _set_mask(context: Ulysses, attention) -> None:
    mask = _by_name(attention)
    if isinstance(mask, BlockMask) and context._plug.mask is not mask:
        context.set_mask(mask)


def _dtype_key(x):
    return x.dtype if hasattr(x, "dtype") else type(x)


def _cached(group, key, arguments) -> Ulysses:
    # The last used goes to the end: what is dropped for a new one must not be what a tensor may still show.
    contexts = group._contexts
    context = contexts.pop(key, None)
    if context is None:
        context = _built(group, arguments())
        _say_once(context)
    contexts[key] = context
    return context


def _built(group, arguments: dict) -> Ulysses:
    # All ranks see the same sequence of shapes, and the same error, so all drop the same one.
    contexts = group._contexts
    if len(contexts) >= _MOST_CONTEXTS:
        contexts.pop(next(iter(contexts))).close()
    while True:
        try:
            return Ulysses(group, **arguments)
        except BadInput as error:
            if not contexts or "buffers at most" not in str(error):
                raise
            contexts.pop(next(iter(contexts))).close()


def _say_once(context: Ulysses) -> None:
    if context._plug.returns_packed and context._plug.name not in _warned:
        _warned.add(context._plug.name)
        warnings.warn(
            f"{context._plug.name} takes no out=, so a scatter kernel sends its result on ({context.backend})",
            RuntimeWarning,
            stacklevel=5,
        )


def _by_the_host(g, q, k, v, joint_q, joint_k, joint_v, kv_lengths, out, **keywords):
    """CUDA tensors of a group that has fallen back: through host memory, which waits for the GPU."""
    cpu = [None if x is None else x.cpu() for x in (q, k, v, joint_q, joint_k, joint_v, kv_lengths)]
    found = ulysses_attention(
        *cpu[:3], group=g, joint_q=cpu[3], joint_k=cpu[4], joint_v=cpu[5], kv_lengths=cpu[6], **keywords
    )
    parts = found if isinstance(found, tuple) else (found,)
    parts = [x.to(q.device) for x in parts]
    if out is not None:
        parts[0] = out.copy_(parts[0])
    return tuple(parts) if isinstance(found, tuple) else parts[0]
