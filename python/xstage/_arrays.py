"""Tensors of numpy, torch and anything that speaks DLPack: in as addresses, out as views of memory of ours.

Neither library is imported here; an array brings its own.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p, py_object

from xstage import _abi
from xstage._errors import BadInput

CPU, CUDA = 1, 2
_NAMES = {code: name for name, code in _abi.DTYPES.items()}
ITEM_BYTES = {"uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = c_void_p, [py_object, c_char_p]
_capsule_new = ctypes.pythonapi.PyCapsule_New
_capsule_new.restype, _capsule_new.argtypes = py_object, [c_void_p, c_char_p, c_void_p]

_DL_TYPES = {
    (0, 32): "int32",
    (1, 32): "uint32",
    (0, 64): "int64",
    (1, 8): "uint8",
    (2, 16): "float16",
    (2, 32): "float32",
    (2, 64): "float64",
    (4, 16): "bfloat16",
}


class Described:
    """Where an array stands: address, shape, strides (elements), dtype by name, device."""

    __slots__ = ("data", "shape", "strides", "dtype", "device", "keep")

    def __init__(self, data, shape, strides, dtype, device, keep):
        self.data, self.shape, self.strides = data, shape, strides
        self.dtype, self.device, self.keep = dtype, device, keep


def is_torch(x) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def describe(x, name: str = "the array") -> Described:
    if is_torch(x):
        device = (CUDA, x.device.index) if x.is_cuda else (CPU, 0)
        if device[0] == CPU and x.device.type != "cpu":
            raise BadInput(f"{name} is on {x.device}; xstage takes CPU and CUDA tensors")
        dtype = str(x.dtype).removeprefix("torch.")
        return Described(x.data_ptr(), tuple(x.shape), x.stride(), dtype, device, x)
    if not hasattr(x, "__dlpack__"):
        raise BadInput(f"{name} is a {type(x).__name__}; pass a torch tensor, a numpy array or a DLPack object")
    capsule = x.__dlpack__()
    t = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    shape = tuple(t.shape[i] for i in range(t.ndim))
    if t.strides:
        strides = tuple(t.strides[i] for i in range(t.ndim))
    else:
        strides, step = [], 1
        for extent in reversed(shape):
            strides.insert(0, step)
            step *= extent
        strides = tuple(strides)
    dtype = _DL_TYPES.get((t.code, t.bits), f"DLPack type {t.code} of {t.bits} bits")
    # The capsule goes unconsumed, which frees nothing that `x` does not own.
    return Described((t.data or 0) + t.byte_offset, shape, strides, dtype, (t.device_type, t.device_id), (x, capsule))


class Lent:
    """Memory of ours as a DLPack producer: what a framework other than torch and numpy is given."""

    def __init__(self, data: int, shape, strides, dtype: str, device):
        self._data, self.shape, self.strides = data, tuple(shape), tuple(strides)
        self.dtype, self._device = dtype, device

    def __dlpack_device__(self):
        return self._device

    def __dlpack__(self, **_ignored):
        n = len(self.shape)
        managed = c_void_p()
        _abi.check(
            _abi.lib.xstage_dlpack_make(
                self._data,
                _abi.DTYPES[self.dtype],
                *self._device,
                n,
                (c_int64 * n)(*self.shape),
                (c_int64 * n)(*self.strides),
                ctypes.byref(managed),
            )
        )
        return _capsule_new(managed, b"dltensor", None)

    def numpy(self):
        import numpy

        if self.dtype == "bfloat16":
            raise BadInput("numpy has no bfloat16; use torch for it, or float16 or float32")
        item = ITEM_BYTES[self.dtype]
        extent = sum((n - 1) * s for n, s in zip(self.shape, self.strides)) + 1 if all(self.shape) else 0
        buffer = (ctypes.c_char * (extent * item)).from_address(self._data) if extent else b""
        return numpy.ndarray(self.shape, self.dtype, buffer, strides=[s * item for s in self.strides])

    def torch(self):
        import torch

        if not all(self.shape):
            device = torch.device("cuda", self._device[1]) if self._device[0] == CUDA else "cpu"
            return torch.empty(self.shape, dtype=getattr(torch, self.dtype), device=device)
        return torch.utils.dlpack.from_dlpack(self.__dlpack__())


def lend(like, data: int, shape, strides, dtype: str, device):
    """A view of memory of ours in the framework of `like` ("torch", "numpy", anything else: DLPack)."""
    lent = Lent(data, shape, strides, dtype, device)
    if like == "torch":
        return lent.torch()
    if like == "numpy":
        return lent.numpy()
    return lent


def framework_of(x) -> str:
    if is_torch(x):
        return "torch"
    return "numpy" if type(x).__module__.split(".")[0] == "numpy" else "dlpack"


def name_of_dtype(code: int) -> str:
    return _NAMES[code]


def dtype_name(dtype) -> str:
    """"bfloat16" from the string, torch's or numpy's object."""
    name = str(getattr(dtype, "__name__", dtype)).removeprefix("torch.")
    name = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}.get(name, name)
    if name not in ("bfloat16", "float16", "float32"):
        raise BadInput(f"dtype {name}: attention works on bfloat16, float16 or float32")
    return name
