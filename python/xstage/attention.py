"""What `attention=` accepts, turned into the plug that the C ABI calls."""

from __future__ import annotations

import ctypes
import inspect
import math
import sys
from typing import Callable

from xstage import _abi, _arrays
from xstage._errors import BadInput, Unsupported
from xstage.block_sparse import BlockMask

_registered: dict[str, Callable] = {}
_SCALES = ("scale", "softmax_scale", "sm_scale")


def register_attention(name: str, kernel: Callable | BlockMask) -> Callable | BlockMask:
    """Names a callable or a block mask, so that compiled code can pass `attention=name`. Returns it."""
    if name in _BUILT_IN or name in _ADAPTERS:
        raise BadInput(f"{name!r} is a name of xstage's own; choose another")
    _registered[name] = kernel
    return kernel


class Plug:
    """An attention kernel as a C callback, or none where the library has its own.

    name: for `backend`; returns_packed: the kernel cannot store to memory that it is given, so one
    scatter kernel sends its plain output on; error: what the callable raised in the last call.
    """

    def __init__(self, name: str, kernel: Callable | None = None, built_in: int = 0):
        self.name, self.kernel, self.built_in = name, kernel, built_in
        self.returns_packed = False
        self.mask: BlockMask | None = None
        self.error: BaseException | None = None
        self.c_kernel = _abi.AttentionKernel()
        self.framework, self.device_of = "torch", None
        self._views: dict[bytes, tuple] = {}
        self._held = None
        if kernel is None:
            return
        self._read_signature(kernel)
        self.c_kernel = _abi.AttentionKernel(self._call)

    def _read_signature(self, kernel) -> None:
        try:
            parameters = inspect.signature(kernel).parameters
        except (TypeError, ValueError):
            parameters = {}
        anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self.returns_packed = "out" not in parameters
        self._scale = next((n for n in _SCALES if n in parameters), "scale" if anything else None)
        self._lengths = "kv_lengths" in parameters
        self._lse = "lse" in parameters

    def _tensors(self, call: _abi.AttentionCall) -> tuple:
        device = self.device_of(call.rank)
        dtype = _arrays.name_of_dtype(call.dtype)

        def lend(view, rows, heads):
            # A batch stride of 0 is a shared tensor; of one batch index it says nothing, and kernels refuse it.
            batch_stride = view.batch_stride or (rows * view.row_stride if call.batch == 1 else 0)
            strides = (batch_stride, view.row_stride, view.head_stride, 1)
            shape = (call.batch, rows, heads, call.head_dim)
            return _arrays.lend(self.framework, view.data or 0, shape, strides, dtype, device)

        q = lend(call.q, call.rows_q, call.heads_q)
        k = lend(call.k, call.rows_kv, call.heads_kv)
        v = lend(call.v, call.rows_kv, call.heads_kv)
        out = lend(call.out, call.rows_q, call.heads_q)
        lse = lengths = None
        if call.lse.data:
            strides = (call.lse.batch_stride, call.lse.head_stride, 1)
            shape = (call.batch, call.heads_q, call.rows_q)
            lse = _arrays.lend(self.framework, call.lse.data, shape, strides, "float32", device)
        if call.kv_lengths:
            strides = (call.kv_lengths_stride,)
            lengths = _arrays.lend(
                self.framework, call.kv_lengths, (call.batch,), strides, "float32", device
            )
            lengths = lengths.view("int32" if self.framework == "numpy" else sys.modules["torch"].int32)
        return q, k, v, out, lse, lengths

    def _call(self, _user, pointer) -> int:
        try:
            # Everything before own_out says what is asked for; the same question has the same tensors.
            key = ctypes.string_at(pointer, _abi.AttentionCall.own_out.offset)
            call = pointer.contents
            tensors = self._views.get(key)
            if tensors is None:
                if len(self._views) > 256:
                    self._views.clear()
                tensors = self._views[key] = self._tensors(call)
            self._run(call, *tensors)
        except BaseException as error:  # nothing may unwind through C; the caller raises it again
            self.error = error
            return 1
        return 0

    def _run(self, call, q, k, v, out, lse, lengths) -> None:
        keywords = {}
        if self._scale is not None:
            keywords[self._scale] = call.scale
        elif not math.isclose(call.scale, 1 / math.sqrt(call.head_dim), rel_tol=1e-6):
            raise BadInput(f"{self.name} takes no scale (one of {', '.join(_SCALES)}), and it is not 1/sqrt(head_dim)")
        if lengths is not None:
            if not self._lengths:
                raise BadInput(f"{self.name} takes no kv_lengths; give it that parameter, or choose another kernel")
            keywords["kv_lengths"] = lengths
        if lse is not None and self._lse:
            keywords["lse"] = lse
        if not self.returns_packed:
            keywords["out"] = out
        result = self.kernel(q, k, v, **keywords)
        own_lse = None
        if isinstance(result, (tuple, list)):
            own_lse = result[1] if len(result) > 1 else None
            result = result[0]
        if lse is not None and not self._lse:
            if own_lse is None:
                raise BadInput(f"{self.name} was asked for the LSE: return (out, lse), or take lse= and fill it")
            lse[...] = own_lse
        if self.returns_packed:
            self._give(call, out, result)

    def _give(self, call, out, result) -> None:
        if tuple(result.shape) != tuple(out.shape):
            raise BadInput(f"{self.name} returned {tuple(result.shape)}, expected {tuple(out.shape)}")
        found = _arrays.describe(result, f"the result of {self.name}")
        item = _arrays.ITEM_BYTES[_arrays.name_of_dtype(call.dtype)]
        aligned = found.data % 16 == 0 and all(s * item % 16 == 0 for s in found.strides[:3])
        plain = found.strides[3] == 1 and found.dtype == _arrays.name_of_dtype(call.dtype)
        if not plain or (found.device[0] == _arrays.CUDA and not aligned):
            out[...] = result
            return
        # The scatter kernel is enqueued after we return; the result must not be freed before.
        self._held = result
        own = call.own_out.contents
        own.data = found.data
        own.batch_stride, own.row_stride, own.head_stride = found.strides[:3]

    def raise_error(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error


def _flash_attention_3() -> Callable:
    import importlib

    import torch

    # The package of PyPI (fa3-fwd), and FlashAttention's own build: one operator under two names.
    for module, space in (("fa3_fwd._C", "fa3_fwd"), ("flash_attn_interface", "flash_attn_3")):
        try:
            importlib.import_module(module)
            forward = getattr(torch.ops, space).fwd
            break
        except (ImportError, AttributeError):
            continue
    else:
        raise Unsupported(
            "attention='fa3' needs FlashAttention-3: pip install --no-deps fa3-fwd, or its own build (module "
            "flash_attn_interface)"
        )
    first: dict = {}

    def fa3(q, k, v, out, scale, lse=None):
        index = None
        if q.shape[0] > 1 and k.stride(0) == 0:
            # Keys that all batch indices share: it wants one batch of them and a table of zeros.
            key = (q.device, q.shape[0])
            if key not in first:
                first[key] = torch.zeros(q.shape[0], dtype=torch.int32, device=q.device)
            index, k, v = first[key], k[:1], v[:1]
        found = forward(q, k, v, out=out, kv_batch_idx=index, softmax_scale=scale, num_splits=1)
        if lse is not None:
            lse.copy_(found[1])

    return fa3


def _flash_attention_4() -> Callable:
    try:
        from flash_attn.cute.interface import _flash_attn_fwd
    except ImportError as error:
        raise Unsupported(f"attention='fa4' needs the package flash-attn-4: {error}") from None

    def fa4(q, k, v, out, scale, lse=None):
        # Keys that batch indices share by a stride of 0 are a kernel of their own to it, compiled on first use.
        _flash_attn_fwd(q, k, v, softmax_scale=scale, causal=False, out=out, lse=lse, return_lse=lse is not None)

    return fa4


# xstage_builtin of the C ABI.
_BUILT_IN = {"cudnn": 1, "xstage": 2, "reference": 3}
_ADAPTERS = {"fa3": _flash_attention_3, "fa4": _flash_attention_4}


def plug_for(attention, backend: str) -> Plug:
    """The plug for what a user passed; each context has its own, since it keeps the context's views."""
    torch = sys.modules.get("torch")
    if torch is not None and attention is torch.nn.functional.scaled_dot_product_attention:
        attention = "cudnn" if backend != "host" else "reference"
    if isinstance(attention, str) and isinstance(_registered.get(attention), BlockMask):
        attention = _registered[attention]
    if isinstance(attention, BlockMask):
        plug = Plug("block_sparse", built_in=_BUILT_IN["reference" if backend == "host" else "xstage"])
        plug.mask = attention
        return plug
    if attention is None:
        return Plug("reference" if backend == "host" else "cudnn")
    if isinstance(attention, str):
        if attention in _registered:
            return Plug(attention, _registered[attention])
        if attention in _ADAPTERS:
            if backend == "host":
                raise BadInput(f"attention={attention!r} needs a GPU; this group is on the host")
            return Plug(attention, _ADAPTERS[attention]())
        if attention not in _BUILT_IN:
            known = [*_BUILT_IN, *_ADAPTERS, *_registered]
            raise BadInput(f"attention={attention!r}: choose one of {', '.join(known)}, or pass a callable")
        if (attention == "reference") != (backend == "host"):
            raise BadInput(
                f"attention={attention!r} on the backend {backend}: the host has 'reference', GPUs have the others"
            )
        return Plug(attention, built_in=_BUILT_IN[attention])
    if not callable(attention):
        raise BadInput(f"attention={attention!r} is neither a name nor a callable")
    return Plug(getattr(attention, "__name__", type(attention).__name__), attention)
