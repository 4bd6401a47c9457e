"""What a call's tensors must be; each error says what to change."""

from __future__ import annotations

import sys

from xstage import _abi, _arrays
from xstage._errors import BadInput


def fill(context, to: _abi.View, x, rows: int, heads: int, name: str) -> None:
    """Writes where `x` stands to `to`, after checking that it is [B, rows, heads, D] as the context wants it."""
    found = _arrays.describe(x, name)
    expected = (context.batch, rows, heads, context.head_dim)
    if found.shape != expected:
        hint = ""
        if len(found.shape) == 4 and (found.shape[0], found.shape[2], found.shape[1], found.shape[3]) == expected:
            hint = "; this looks like [B, H, S, D]: pass x.transpose(1, 2)"
        raise BadInput(f"{name} is {list(found.shape)}, expected [B, S, H, D] = {list(expected)}{hint}")
    if found.dtype != context.dtype:
        raise BadInput(f"{name} is {found.dtype}, this attention is {context.dtype}: q, k, v and out share one dtype")
    if found.strides[3] != 1 and context.head_dim > 1:
        raise BadInput(f"{name}: the last dimension has stride {found.strides[3]}, must be 1: pass x.contiguous()")
    if getattr(x, "requires_grad", False) and _arrays.is_torch(x) and sys.modules["torch"].is_grad_enabled():
        raise BadInput(f"forward only: {name} requires grad; call under torch.no_grad(), or pass {name}.detach()")
    same_memory(context, found, name)
    to.data = found.data
    to.batch_stride, to.row_stride, to.head_stride = found.strides[:3]


def same_memory(context, found, name: str) -> None:
    kind, _ = context.group.device_of(0)
    if found.device[0] != kind:
        where = {1: "the CPU", 2: "a GPU"}.get(found.device[0], "another device")
        need = "the CPU" if kind == _arrays.CPU else "a GPU"
        reason = f" ({context.fallback_reason})" if context.fallback_reason else ""
        raise BadInput(f"{name} is on {where}, the group's memory on {need}{reason}: move it there")


def lengths(context, kv_lengths) -> int:
    """The address of kv_lengths."""
    found = _arrays.describe(kv_lengths, "kv_lengths")
    if found.dtype != "int32" or found.shape != (context.batch,) or found.strides != (1,):
        what = f"{found.dtype} {list(found.shape)}"
        raise BadInput(f"kv_lengths must be int32 [{context.batch}], contiguous; it is {what}")
    same_memory(context, found, "kv_lengths")
    return found.data


def address(x) -> int:
    try:
        return x.data_ptr()
    except AttributeError:
        return _arrays.describe(x).data


def layout(x) -> tuple:
    try:
        # A device's number is had without making an object of it; -1 is the CPU.
        return x.shape, x.stride(), x.dtype, x.get_device(), x.requires_grad
    except AttributeError:
        pass
    return tuple(x.shape), getattr(x, "strides", None), str(getattr(x, "dtype", "")), type(x)


def as_list(x, n: int, many: bool) -> list:
    if not many:
        return [x]
    if x is None:
        return [None] * n
    if not isinstance(x, (list, tuple)) or len(x) != n:
        raise BadInput(f"this process holds {n} ranks: pass a list with one tensor for each")
    return list(x)


def per_rank(rows, world: int, name: str) -> list[int]:
    found = [rows] * world if isinstance(rows, int) else [int(r) for r in rows]
    if len(found) != world:
        raise BadInput(f"{name} has {len(found)} entries for {world} ranks")
    return found


def refuse_capture(why: str) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise BadInput(f"called inside a CUDA graph capture, but {why}: make one eager call on all ranks first")
