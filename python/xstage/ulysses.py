"""Attention over ranks whose sequence is sharded, with buffers and lifetime in the caller's hands."""

from __future__ import annotations

import ctypes
import os
from ctypes import c_int32, c_int64, c_void_p
from typing import Callable, Sequence

from xstage import _abi, _arrays, _checks
from xstage import group as _group
from xstage._errors import BadInput, Closed, XstageError
from xstage.attention import plug_for

class Ulysses(_group.Child):
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
        # Views into the arrays, made once: each attribute of a ctypes structure is a new object.
        self._slots = [
            (c, c.q.image, c.k.image, c.v.image, c.q.text, c.k.text, c.v.text, c.to.out) for c in self._sharded
        ]
        self._found = [(r.out, r.text_out, r.lse) for r in self._results]
        self._inputs = {id(a): (ctypes.cast(a, c_void_p), n) for a in (self._sharded, self._gathered)}
        self._seen: dict = {}
        self._lent: dict = {}
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
        handle = self._open()
        if self._copies and out is None:
            many = len(self._sharded) > 1
            out = [self._out_for(i, x) for i, x in enumerate(q if many else [q])]
            out = out if many else out[0]
        if transforms is not None or self._transformed:
            self._transform(transforms)
        if len(self._sharded) > 1:
            return self._attend_lists(handle, q, k, v, joint_q, joint_k, joint_v, kv_lengths, scale, out)
        self._fill_sharded(0, q, k, v, joint_q, joint_k, joint_v, kv_lengths, scale, out)
        return self._finish(_abi.lib.xstage_ulysses_attend, handle, self._sharded, (q,), (out,))[0]

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

    def _attend_lists(self, handle, q, k, v, joint_q, joint_k, joint_v, kv_lengths, scale, out):
        n = len(self._sharded)
        lists = [_checks.as_list(x, n, True) for x in (q, k, v, joint_q, joint_k, joint_v, kv_lengths)]
        outs = _checks.as_list(out, n, True)
        for i in range(n):
            self._fill_sharded(i, *(x[i] for x in lists), scale, outs[i])
        return self._finish(_abi.lib.xstage_ulysses_attend, handle, self._sharded, lists[0], outs)

    def _fill_sharded(self, i, q, k, v, joint_q, joint_k, joint_v, kv_lengths, scale, out):
        c = self._slots[i][0]
        if not self._known(i, (q, k, v, out, kv_lengths, joint_q, joint_k, joint_v)):
            rank = self.group.local_ranks[i]
            rows_kv = (self.rows_kv or self.rows)[rank]
            _checks.fill(self, c.q.image, q, self.rows[rank], self.heads, "q")
            _checks.fill(self, c.k.image, k, rows_kv, self.kv_heads, "k")
            _checks.fill(self, c.v.image, v, rows_kv, self.kv_heads, "v")
            for name, text, rows, heads, to in (
                ("joint_q", joint_q, self.text, self.heads, c.q.text),
                ("joint_k", joint_k, self.text_kv, self.kv_heads, c.k.text),
                ("joint_v", joint_v, self.text_kv, self.kv_heads, c.v.text),
            ):
                if (text is None) != (rows == 0):
                    given = "is missing" if text is None else "was given"
                    raise BadInput(f"{name} {given}, and this object was built for {rows} text rows")
                if text is not None:
                    _checks.fill(self, to, text, rows, heads, name)
            self._rest(c, i, kv_lengths, out)
        _, q_view, k_view, v_view, q_text, k_text, v_text, to = self._slots[i]
        q_view.data, k_view.data, v_view.data = _checks.address(q), _checks.address(k), _checks.address(v)
        if joint_q is not None:
            q_text.data = _checks.address(joint_q)
        if joint_k is not None:
            k_text.data, v_text.data = _checks.address(joint_k), _checks.address(joint_v)
        if kv_lengths is not None:
            c.kv_lengths = _checks.address(kv_lengths)
        if out is not None:
            to.data = _checks.address(out)
        c.scale = scale or 0.0

    def _known(self, place, tensors) -> bool:
        """Whether these layouts were checked before: then only addresses change."""
        key = tuple([None if t is None else _checks.layout(t) for t in tensors])
        if self._seen.get(place) == key:
            return True
        self._seen.pop(place, None)
        self._pending = (place, key)
        return False

    def _rest(self, c, i, kv_lengths, out) -> None:
        """Lengths and destination of one input; the layouts are then known."""
        if (kv_lengths is not None) != self.lengths:
            raise BadInput(f"this object was built with lengths={self.lengths}; kv_lengths must be given exactly then")
        if kv_lengths is not None:
            c.kv_lengths = _checks.lengths(self, kv_lengths)
        ctypes.memset(ctypes.byref(c.to), 0, ctypes.sizeof(c.to))
        if out is not None:
            _checks.fill(self, c.to.out, out, self.rows[self.group.local_ranks[i]], self.heads, "out")
        place, key = self._pending
        self._seen[place] = key

    def _finish(self, function, handle, inputs, like, outs) -> list:
        if not self.called:
            _checks.refuse_capture("its first call plans")
        if self.poison:
            self._poison()
        framework = _arrays.framework_of(like[0])
        self._plug.framework = framework if framework != "dlpack" else "numpy"
        streams, count = self.group.streams()
        pointer, n = self._inputs[id(inputs)]
        status = function(handle, pointer, n, streams, count, self._results)
        if status:
            self._plug.raise_error()
            raise _abi.error_of(status)
        self.called = True
        found = [self._lend(i, framework, outs[i]) for i in range(len(inputs))]
        if self.poison:
            self._last = [x for one in found for x in (one if isinstance(one, tuple) else (one,))]
            self._last = [x for x in self._last if all(x is not o for o in outs)]
        return found

    def _lend(self, i: int, framework: str, out):
        # Lent memory turns with the buffers: as many entries as there are of those.
        lent, text, sums = self._found[i]
        key = (i, framework, None if out is not None else lent.data, text.data, sums.data)
        views = self._lent.get(key)
        if views is None:
            result = self._results[i]
            views = self._lent[key] = self._make_views(i, framework, result, out is None)
        if framework == "torch":
            # A new alias each time: what a user does to its metadata stays there.
            views = [x.detach() for x in views]
        if out is not None:
            views = [out, *views]
        return views[0] if len(views) == 1 else tuple(views)

    def _make_views(self, i: int, framework: str, result, lent: bool) -> list:
        rank = self.group.local_ranks[i]
        device = self.group.device_of(i)
        rows = self.rows[rank]

        def tensor(view, rows):
            shape = (self.batch, rows, self.heads, self.head_dim)
            strides = (view.batch_stride, view.row_stride, view.head_stride, 1)
            return _arrays.lend(framework, view.data or 0, shape, strides, self.dtype, device)

        def sums(view, rows):
            shape, strides = (self.batch, self.heads, rows), (view.batch_stride, view.head_stride, 1)
            return _arrays.lend(framework, view.data or 0, shape, strides, "float32", device)

        views = [tensor(result.out, rows)] if lent else []
        if self.text:
            views.append(tensor(result.text_out, self.text))
        if self.lse:
            views.append(sums(result.lse, rows))
            if self.text:
                views.append(sums(result.text_lse, self.text))
        return views

    def _poison(self) -> None:
        for x in self._last:
            if hasattr(x, "fill_"):
                x.fill_(float("nan"))
            elif hasattr(x, "fill"):
                x.fill(float("nan"))
        self._last = []

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
