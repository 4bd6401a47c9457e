"""How a call's arguments become C structures, and what it has found becomes tensors: host time of every call."""

from __future__ import annotations

import ctypes
from ctypes import c_void_p

from xstage import _abi, _arrays, _checks
from xstage._errors import BadInput


class Calls:
    """The part of xstage.Ulysses that runs in each call. Layouts that were checked once are compared, not checked."""

    def _prepare(self) -> None:
        """Views into the structures of a call, made once: each attribute of one is a new object."""
        n = len(self._sharded)
        self._slots = [
            (c, c.q.image, c.k.image, c.v.image, c.q.text, c.k.text, c.v.text, c.to.out) for c in self._sharded
        ]
        self._found = [(r.out, r.text_out, r.lse) for r in self._results]
        self._inputs = {id(a): (ctypes.cast(a, c_void_p), n) for a in (self._sharded, self._gathered)}
        self._results_at = ctypes.cast(self._results, c_void_p)
        self._seen: dict = {}
        self._plain: list = [None] * n  # layouts of q, k, v where a call has nothing else
        self._scale: float | None = None
        self._lent: dict = {}
        self._framework: tuple = (None, "")

    def _fill_plain(self, i, q, k, v):
        """_fill_sharded for the usual call, by as few steps as its checks allow: this is host time of every call."""
        try:
            key = (
                q.shape, q.stride(), q.dtype, q.get_device(), q.requires_grad,
                k.shape, k.stride(), k.dtype, k.get_device(), k.requires_grad,
                v.shape, v.stride(), v.dtype, v.get_device(), v.requires_grad,
            )  # fmt: skip
            if key == self._plain[i]:
                slot = self._slots[i]
                slot[1].data, slot[2].data, slot[3].data = q.data_ptr(), k.data_ptr(), v.data_ptr()
                return
        except AttributeError:
            key = None
        self._fill_sharded(i, q, k, v, None, None, None, None, None)
        self._plain[i] = key

    def _fill_sharded(self, i, q, k, v, joint_q, joint_k, joint_v, kv_lengths, out):
        self._plain[i] = None
        c, q_view, k_view, v_view, q_text, k_text, v_text, to = self._slots[i]
        if not self._known(i, (q, k, v, out, kv_lengths, joint_q, joint_k, joint_v)):
            rank = self.group.local_ranks[i]
            rows_kv = (self.rows_kv or self.rows)[rank]
            _checks.fill(self, c.q.image, q, self.rows[rank], self.heads, "q")
            _checks.fill(self, c.k.image, k, rows_kv, self.kv_heads, "k")
            _checks.fill(self, c.v.image, v, rows_kv, self.kv_heads, "v")
            for name, text, rows, heads, place in (
                ("joint_q", joint_q, self.text, self.heads, c.q.text),
                ("joint_k", joint_k, self.text_kv, self.kv_heads, c.k.text),
                ("joint_v", joint_v, self.text_kv, self.kv_heads, c.v.text),
            ):
                if (text is None) != (rows == 0):
                    given = "is missing" if text is None else "was given"
                    raise BadInput(f"{name} {given}, and this object was built for {rows} text rows")
                if text is not None:
                    _checks.fill(self, place, text, rows, heads, name)
            self._rest(c, i, kv_lengths, out)
        address = _checks.address
        q_view.data, k_view.data, v_view.data = address(q), address(k), address(v)
        if joint_q is not None:
            q_text.data = address(joint_q)
        if joint_k is not None:
            k_text.data, v_text.data = address(joint_k), address(joint_v)
        if kv_lengths is not None:
            c.kv_lengths = address(kv_lengths)
        if out is not None:
            to.data = address(out)

    def _known(self, place, tensors) -> bool:
        """Whether these layouts were checked before: then only addresses change."""
        layout = _checks.layout
        key = [None if t is None else layout(t) for t in tensors]
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
        kind, framework = self._framework
        if kind is not type(like[0]):
            framework = _arrays.framework_of(like[0])
            self._framework = (type(like[0]), framework)
            self._plug.framework = framework if framework != "dlpack" else "numpy"
        streams, count = self.group.streams()
        pointer, n = self._inputs[id(inputs)]
        status = function(handle, pointer, n, streams, count, self._results_at)
        if status:
            self._plug.raise_error()
            raise _abi.error_of(status)
        self.called = True
        if outs is None:
            found = [self._lend(i, framework, None) for i in range(n)]
        else:
            found = [self._lend(i, framework, outs[i]) for i in range(n)]
        if self.poison:
            self._last = [x for one in found for x in (one if isinstance(one, tuple) else (one,))]
            self._last = [x for x in self._last if all(x is not o for o in outs or ())]
        return found

    def _lend(self, i: int, framework: str, out):
        # Lent memory turns with the buffers: as many entries as there are of those.
        lent, text, sums = self._found[i]
        if out is None and not self.text and not self.lse:
            key = (i, framework, lent.data)
        else:
            key = (i, framework, None if out is not None else lent.data, text.data, sums.data)
        views = self._lent.get(key)
        if views is None:
            result = self._results[i]
            views = self._lent[key] = self._make_views(i, framework, result, out is None)
        if framework == "torch":
            # A new alias each time: what a user does to its metadata stays there.
            if out is None and len(views) == 1:
                return views[0].detach()
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
