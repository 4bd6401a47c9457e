"""Attention over ranks whose sequence is sharded, with buffers and lifetime in the caller's hands."""

from __future__ import annotations

import ctypes
import os
from ctypes import c_int32, c_int64, c_void_p
from typing import Callable, Sequence

from xstage import _abi, _arrays, _checks
from xstage import group as _group
from xstage._calls import Calls
from xstage._errors import BadInput, Closed, XstageError
from xstage.attention import plug_for

class Ulysses(Calls, _group.Child):
    """One attention problem over the ranks of a group. Collective to build, to call and to close.

    group: xstage.Group, torch process group, the name of either, or None for torch's default group.
    rows: rows of the sequence per rank, S_local of each; an int when all are equal.
    heads, kv_heads, head_dim, batch: of the whole problem (kv_heads divides heads; None: the same).
    rows_kv: the same for keys and values (cross attention); None: rows.
    text, text_kv: rows that every rank holds alike (joint text), and whether they stand in front.
    dtype: "bfloat16", "float16", "float32" (host only, or a callable), or torch's or numpy's object.
    lse: results come with the row sums' logarithm. lengths: calls take kv_lengths.
    attention: "cudnn", "xstage", "fa3", "fa4", a registered name, or a callable
        f(q, k, v, *, out, scale) on [B, S, H, D] (docs/python.md); None: cuDNN, or the reference on the host;
        an xstage.BlockMask over all ranks' rows and all heads, the same on every rank: its blocks alone.
    layout: of the stitched result: "auto", "batched", "padded", "pages", "split", "scatter".
    out_pitch: elements between rows of the result, at least heads * head_dim (0: that).
    gathered_only: memory for attend_and_scatter alone.
    poison: fill a result with NaN when the next call ends its life. Default: XSTAGE_POISON=1.

    A result is lent: it is valid on its stream until the next call of this object, and its (heads,
    head_dim) are mergeable, so that an output projection reads it without a copy. `out=` copies instead.
    """

    def __init__(
        self,
        group,
        *,
        rows: int | Sequence[int],
        heads: int,
        head_dim: int,
        kv_heads: int | None = None,
        batch: int = 1,
        rows_kv: int | Sequence[int] | None = None,
        text: int = 0,
        text_kv: int | None = None,
        text_front: bool = False,
        dtype="bfloat16",
        lse: bool = False,
        lengths: bool = False,
        attention: str | Callable | None = None,
        layout: str = "auto",
        out_pitch: int = 0,
        gathered_only: bool = False,
        buffers: int = 2,
        poison: bool | None = None,
    ):
        self._handle = c_void_p()
        self.group = g = _group.resolve(group)
        if g.world == 1:
            raise BadInput(
                "a group of one rank has nothing to exchange: call the attention kernel itself, or pass a group of "
                "several ranks (xstage.Group.local(world) makes virtual ones)"
            )
        _checks.refuse_capture("this shape has not been set up")
        self.rows, self.rows_kv = _checks.per_rank(rows, g.world, "rows"), None
        if rows_kv is not None:
            self.rows_kv = _checks.per_rank(rows_kv, g.world, "rows_kv")
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.head_dim, self.batch = head_dim, batch
        self.text, self.text_kv = text, text if text_kv is None else text_kv
        self.dtype, self.lse, self.lengths = _arrays.dtype_name(dtype), lse, lengths
        if layout not in _abi.LAYOUTS:
            raise BadInput(f"layout {layout!r}: choose one of {', '.join(_abi.LAYOUTS)}")
        self._plug = plug = plug_for(attention, g.backend)
        plug.device_of = lambda rank: g.device_of(g.local_ranks.index(rank))
        options = _abi.UlyssesOptions(
            batch=batch,
            heads_q=heads,
            heads_kv=self.kv_heads,
            head_dim=head_dim,
            rows_q=(c_int64 * g.world)(*self.rows),
            text_q=self.text,
            text_kv=self.text_kv,
            text_front=text_front,
            dtype=_abi.DTYPES[self.dtype],
            with_lse=lse,
            with_lengths=lengths,
            out_pitch=out_pitch,
            layout=_abi.LAYOUTS[layout],
            gathered_only=gathered_only,
            buffers=buffers,
            kernel=plug.c_kernel,
            builtin=plug.built_in,
            kernel_returns_packed=plug.returns_packed,
            masked=plug.mask is not None,
        )
        if self.rows_kv is not None:
            options.rows_kv = (c_int64 * g.world)(*self.rows_kv)
        try:
            _abi.check(_abi.lib.xstage_ulysses_create(g.handle, ctypes.byref(options), ctypes.byref(self._handle)))
        except XstageError as error:
            if "disagree" in str(error):
                hint = "; every rank must pass the same shapes, so pass seq_lens (rows) with all ranks' lengths"
                raise type(error)(str(error) + hint) from None
            raise
        self.poison = os.environ.get("XSTAGE_POISON", "") == "1" if poison is None else poison
        self._copies = batch > 1 and not self._samples_in_step(buffers)
        n = len(g.local_ranks)
        self._sharded = (_abi.ShardedInput * n)()
        self._gathered = (_abi.GatheredInput * n)()
        self._results = (_abi.UlyssesResult * n)()
        self._prepare()
        self._last: list = []
        self.called = self._transformed = False
        self._join()
        if plug.mask is not None:
            self.set_mask(plug.mask)

    # ---- what it is ------------------------------------------------------------------------------

    @property
    def backend(self) -> str:
        """For example "process/cudnn/stitched", or ".../scattered" for a kernel that takes no `out` or where the
        planner finds one scatter kernel faster.

        A last "/copied" says that samples lie where no tensor can show them together, so that results are
        copied into memory of their own (batch > 1; the layout decides).
        """
        scattered = self._plug.returns_packed or self.plan.startswith("scatter")
        way = "scattered" if scattered else "stitched"
        return f"{self.group.backend}/{self._plug.name}/{way}" + ("/copied" if self._copies else "")

    @property
    def fallback_reason(self) -> str:
        """Why the group is on the host although a GPU was asked for; "" otherwise."""
        return self.group.fallback_reason

    @property
    def plan(self) -> str:
        """One line: layout, calls, tiles added, memory, prediction."""
        return _abi.lib.xstage_ulysses_describe(self._open()).decode()

    @property
    def memory_bytes(self) -> int:
        return _abi.lib.xstage_ulysses_memory_bytes(self._open())

    def local_heads(self, rank: int | None = None) -> tuple[range, range]:
        """Which query and key heads a rank computes."""
        q, kv = (c_int32 * 2)(), (c_int32 * 2)()
        rank = self.group.rank if rank is None else rank
        _abi.check(_abi.lib.xstage_ulysses_heads(self._open(), rank, q, kv))
        return range(*q), range(*kv)

    def _samples_in_step(self, buffers: int) -> bool:
        """Whether every buffer's samples are a constant, positive distance apart, as a tensor needs."""
        view = _abi.View()
        for buffer in range(buffers):
            for rank in self.group.local_ranks:
                _abi.check(_abi.lib.xstage_ulysses_out_memory(self._handle, buffer, rank, ctypes.byref(view)))
                if self.rows[rank] and (not view.data or view.batch_stride < 0):
                    return False
        return True

    def _out_for(self, i: int, like):
        """A result's own memory, where it cannot be lent."""
        shape = (self.batch, self.rows[self.group.local_ranks[i]], self.heads, self.head_dim)
        if _arrays.is_torch(like):
            return like.new_empty(shape)
        import numpy

        return numpy.empty(shape, self.dtype)

    def set_mask(self, mask) -> None:
        """The blocks that the next calls compute, for an object whose attention is an xstage.BlockMask.

        A mask of the same rows, the same on every rank. A captured graph keeps the mask it was captured with, as
        long as that is among the 256 latest of this object.
        """
        _abi.check(_abi.lib.xstage_ulysses_set_mask(self._open(), mask.handle))
        self._plug.mask = mask

    # ---- calls -----------------------------------------------------------------------------------

    def attend(self, q, k, v, *, joint_q=None, joint_k=None, joint_v=None, kv_lengths=None, scale=None, out=None,
               transforms=None):  # fmt: skip
        """Attention of the whole sequence; q, k, v are this rank's rows of all heads, [B, S_local, H, D].

        joint_q, joint_k, joint_v: the text rows, [B, text, H, D], alike on all ranks.
        kv_lengths: int32 [B] in the tensors' memory, valid keys of each sample from the first one.
        scale: default 1/sqrt(D). out: memory of the caller, [B, S_local, H, D], at the price of one copy.
        transforms: {"q": (Norm, Rotary), "k": ..., "joint_q": ..., "joint_k": ...}, applied on the way to the
        owners of the heads; either of a pair may be None, and a missing entry is left alone.

        Returns out [B, S_local, H, D], or a tuple: out, then joint_out [B, text, H, D] when there is text,
        then with lse the fp32 [B, H, S_local] and, with text, [B, H, text]. On a group with several local
        ranks every argument is a list with one entry per rank, and so is the result.
        """
        handle = self._handle if self._handle else self._open()
        if self._copies and out is None:
            many = len(self._sharded) > 1
            out = [self._out_for(i, x) for i, x in enumerate(q if many else [q])]
            out = out if many else out[0]
        if transforms is not None or self._transformed:
            self._transform(transforms)
        if scale != self._scale:
            self._scale = scale
            for slot in self._slots:
                slot[0].scale = scale or 0.0
        n = len(self._slots)
        plain = joint_q is None and joint_k is None and joint_v is None and kv_lengths is None and out is None
        if n > 1:
            lists = [_checks.as_list(x, n, True) for x in (q, k, v)]
            outs = None
            if plain:
                for i in range(n):
                    self._fill_plain(i, lists[0][i], lists[1][i], lists[2][i])
            else:
                others = [_checks.as_list(x, n, True) for x in (joint_q, joint_k, joint_v, kv_lengths, out)]
                for i in range(n):
                    self._fill_sharded(i, *(x[i] for x in lists), *(x[i] for x in others))
                outs = others[4]
            return self._finish(_abi.lib.xstage_ulysses_attend, handle, self._sharded, lists[0], outs)
        if plain:
            self._fill_plain(0, q, k, v)
        else:
            self._fill_sharded(0, q, k, v, joint_q, joint_k, joint_v, kv_lengths, out)
        outs = None if out is None else (out,)
        return self._finish(_abi.lib.xstage_ulysses_attend, handle, self._sharded, (q,), outs)[0]

    __call__ = attend

    def attend_and_scatter(self, q, k, v, *, kv_lengths=None, scale=None, out=None):
        """The same for q, k, v that are gathered by heads already: [B, S (and text), heads of this rank, D]."""
        handle = self._open()
        many = len(self._gathered) > 1
        if self._copies and out is None:
            out = [self._out_for(i, x) for i, x in enumerate(q if many else [q])]
            out = out if many else out[0]
        qs, ks, vs, outs, lengths = (_checks.as_list(x, len(self._gathered), many) for x in (q, k, v, out, kv_lengths))
        for i in range(len(qs)):
            rank = self.group.local_ranks[i]
            c = self._gathered[i]
            if not self._known(i, (qs[i], ks[i], vs[i], outs[i], lengths[i])):
                heads_q, heads_kv = self.local_heads(rank)
                rows_q = sum(self.rows) + self.text
                rows_kv = sum(self.rows_kv or self.rows) + self.text_kv
                _checks.fill(self, c.q, qs[i], rows_q, len(heads_q), "q")
                _checks.fill(self, c.k, ks[i], rows_kv, len(heads_kv), "k")
                _checks.fill(self, c.v, vs[i], rows_kv, len(heads_kv), "v")
                self._rest(c, i, lengths[i], outs[i])
            c.q.data, c.k.data, c.v.data = _checks.address(qs[i]), _checks.address(ks[i]), _checks.address(vs[i])
            c.kv_lengths = None if lengths[i] is None else _checks.address(lengths[i])
            if outs[i] is not None:
                c.to.out.data = _checks.address(outs[i])
            c.scale = scale or 0.0
        outs = None if out is None else outs
        found = self._finish(_abi.lib.xstage_ulysses_attend_and_scatter, handle, self._gathered, qs, outs)
        return found if many else found[0]

    def _transform(self, given) -> None:
        from xstage import transforms

        each = _checks.as_list(given, len(self._sharded), len(self._sharded) > 1)
        for i, one in enumerate(each):
            rank = self.group.local_ranks[i]
            rows = dict(q=self.rows[rank], k=(self.rows_kv or self.rows)[rank], joint_q=self.text, joint_k=self.text_kv)
            c = self._sharded[i]
            transforms.apply(one or {}, {"q": c.q, "k": c.k}, self, rows)
        self._transformed = any(one for one in each)

    # ---- lifetime --------------------------------------------------------------------------------

    def _open(self) -> c_void_p:
        if not self._handle:
            raise Closed("this Ulysses object is closed: build a new one (results of a closed one must not be read)")
        return self._handle

    def close(self) -> None:
        """Frees the memory; results that were lent must not be read afterwards."""
        if self._handle:
            _abi.lib.xstage_ulysses_destroy(self._handle)
            self._handle = c_void_p()
            self._lent.clear()
            self._seen.clear()
            self._last = []
            self._plug._views.clear()
            self._leave()

    def __repr__(self) -> str:
        state = "closed" if not self._handle else f"rows {self.rows}, {self.heads} heads of {self.head_dim}"
        return f"<xstage.Ulysses {state}, {self.backend}>"
