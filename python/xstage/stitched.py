"""Stitched tensors: one contiguous range whose rows live on the ranks that own them."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_size_t, c_void_p
from typing import Sequence

from xstage import _abi, _arrays, _checks
from xstage import group as _group
from xstage._errors import BadInput, Closed


class Stitched(_group.Child):
    """See `stitch`. One call: begin(b), kernels that store into range(b), publish(b), acquire(b), readers
    of receive(b); all on the current stream, none meets the host, all can be captured into a graph. What
    receive(b) shows is this rank's until its next begin. exchange(b) is publish and acquire in one kernel.
    """

    def __init__(self, group, rows, row_shape, dtype, layout, buffers, tile_rows, like):
        self._handle = c_void_p()
        self.group = g = _group.resolve(group)
        if layout not in ("batched", "padded", "pages"):
            raise BadInput(f"layout {layout!r}: choose batched, padded or pages")
        self.rows = _checks.per_rank(rows, g.world, "rows")
        self.row_shape, self.layout, self.buffers = tuple(row_shape), layout, buffers
        self.dtype = str(getattr(dtype, "__name__", dtype)).removeprefix("torch.")
        if self.dtype not in _abi.DTYPES:
            raise BadInput(f"dtype {self.dtype}: choose one of {', '.join(_abi.DTYPES)}")
        self._like = like
        self._item = _arrays.ITEM_BYTES[self.dtype]
        elements = 1
        for n in self.row_shape:
            elements *= n
        options = _abi.StitchedOptions(
            padded=int(layout != "batched"),
            by_pages=int(layout == "pages"),
            rows=(c_int64 * g.world)(*self.rows),
            row_bytes=elements * self._item,
            dtype=_abi.DTYPES[self.dtype],
            tile_rows=tile_rows,
            buffers=buffers,
        )
        _abi.check(_abi.lib.xstage_stitched_tensor_create(g.handle, ctypes.byref(options), ctypes.byref(self._handle)))
        self._layout = _abi.StitchedLayout()
        _abi.check(_abi.lib.xstage_stitched_tensor_layout(self._handle, ctypes.byref(self._layout)))
        self._views: dict = {}
        self._join()

    @property
    def row_stride(self) -> int:
        """Elements between rows, in the range and where they are received."""
        return self._layout.row_stride // self._item

    @property
    def memory_ratio(self) -> float:
        """Bytes of memory over bytes of rows."""
        return self._layout.memory_ratio

    def offset(self, rank: int, row: int) -> int:
        """Elements from the start of the range to a rank's row."""
        found = c_size_t()
        _abi.check(_abi.lib.xstage_stitched_tensor_offset(self._open(), rank, row, ctypes.byref(found)))
        return found.value // self._item

    def range(self, buffer: int = 0):
        """What a kernel stores to: [world, rows, *row_shape] when batched, else [axis rows, *row_shape]."""
        address = c_void_p()
        _abi.check(_abi.lib.xstage_stitched_tensor_range(self._open(), buffer, ctypes.byref(address)))
        if self.layout == "batched":
            shape = (self.group.world, max(self.rows))
            strides = (self._layout.batch_stride // self._item, self.row_stride)
            if self._layout.last_apart or len(set(self.rows)) > 1:
                raise BadInput("rows differ: a batched range has no single shape; use part(rank), or layout='padded'")
        else:
            shape, strides = (self._layout.axis_rows,), (self.row_stride,)
        return self._view(("range", buffer), address.value, shape, strides)

    def part(self, rank: int, buffer: int = 0):
        """A rank's rows as this one stores to them, [rows, *row_shape]; not for the layout "pages"."""
        if self.layout == "pages":
            raise BadInput("a rank's rows are scattered pages in this layout; store to range()")
        address = c_void_p()
        _abi.check(_abi.lib.xstage_stitched_tensor_range(self._open(), buffer, ctypes.byref(address)))
        at = address.value + self.offset(rank, 0) * self._item
        return self._view(("part", buffer, rank), at, (self.rows[rank],), (self.row_stride,))

    def receive(self, buffer: int = 0, rank: int | None = None):
        """This rank's own rows, [rows, *row_shape]."""
        rank = self.group.rank if rank is None else rank
        address = c_void_p()
        _abi.check(_abi.lib.xstage_stitched_tensor_receive(self._open(), buffer, rank, ctypes.byref(address)))
        return self._view(("receive", buffer, rank), address.value, (self.rows[rank],), (self.row_stride,))

    def begin(self, buffer: int = 0) -> None:
        """Gives back what was received, and waits until every peer has given back this buffer."""
        self._enqueue(_abi.lib.xstage_stitched_tensor_begin, buffer)

    def publish(self, buffer: int = 0) -> None:
        """Says that all stores of this call have been issued."""
        self._enqueue(_abi.lib.xstage_stitched_tensor_publish, buffer)

    def acquire(self, buffer: int = 0) -> None:
        """Waits for every peer's publish."""
        self._enqueue(_abi.lib.xstage_stitched_tensor_acquire, buffer)

    def exchange(self, buffer: int = 0) -> None:
        """publish and acquire as one kernel."""
        self._enqueue(_abi.lib.xstage_stitched_tensor_exchange, buffer)

    def close(self) -> None:
        """Frees the memory; its tensors must not be used afterwards."""
        if self._handle:
            _abi.lib.xstage_stitched_tensor_destroy(self._handle)
            self._handle = c_void_p()
            self._views.clear()
            self._leave()

    def _open(self) -> c_void_p:
        if not self._handle:
            raise Closed("this stitched tensor is closed: build a new one")
        return self._handle

    def _enqueue(self, function, buffer: int) -> None:
        streams, count = self.group.streams()
        _abi.check(function(self._open(), buffer, streams, count))

    def _view(self, key, address: int, shape, strides):
        if key not in self._views:
            inner, step = [], 1
            for n in reversed(self.row_shape):
                inner.insert(0, step)
                step *= n
            self._views[key] = _arrays.lend(
                self._like,
                address,
                (*shape, *self.row_shape),
                (*strides, *inner),
                self.dtype,
                self.group.device_of(0),
            )
        return self._views[key]


def stitch(
    group,
    *,
    rows: int | Sequence[int],
    row_shape: Sequence[int],
    dtype="bfloat16",
    layout: str = "batched",
    buffers: int = 2,
    tile_rows: int = 0,
    like: str = "torch",
) -> Stitched:
    """Memory for a kernel of your own: ordinary stores into `range()` land on the ranks that own the rows.

    rows: per rank, or one number for all; row_shape: of one row, e.g. (heads, head_dim). layout: "batched"
    ([world, rows, ...], packed), "padded" (one axis, chunk after chunk) or "pages" (pages of the ranks in
    turn). like: "torch", "numpy" or "dlpack". Collective. Raises BadInput where a layout cannot hold the rows.
    """
    return Stitched(group, rows, row_shape, dtype, layout, buffers, tile_rows, like)
