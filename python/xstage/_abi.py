"""The C ABI (xstage.h, xstage_ulysses.h, xstage_moe.h, xstage_sparse.h) by ctypes: structures, library, errors."""

from __future__ import annotations

import ctypes
import os
import pathlib
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

from xstage._errors import BY_STATUS, Unsupported, XstageError

HOST, LOCAL, PROCESS, NVSHMEM = range(4)
BACKENDS = ("host", "local", "process", "nvshmem")
DTYPES = {"uint8": 0, "float16": 1, "bfloat16": 2, "float32": 3, "float64": 4}
LAYOUTS = {"auto": 0, "batched": 1, "padded": 2, "pages": 3, "split": 4, "scatter": 5}


class _Sized(ctypes.Structure):
    """A structure whose first field is its own size."""

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


class FabricOptions(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("backend", c_int32),
        ("world", c_int32),
        ("rank", c_int32),
        ("name", c_char_p),
        ("devices", POINTER(c_int32)),
        ("device_count", c_size_t),
        ("setup_timeout_ms", c_uint32),
        ("wait_timeout_ms", c_uint32),
        ("trap_on_timeout", c_int32),
        ("allow_fallback", c_int32),
        ("host_page_bytes", c_size_t),
    ]


class StitchedOptions(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("padded", c_int32),
        ("by_pages", c_int32),
        ("rows", POINTER(c_int64)),
        ("row_bytes", c_size_t),
        ("dtype", c_int32),
        ("tile_rows", c_int64),
        ("rank_order", POINTER(c_int32)),
        ("buffers", c_int32),
    ]


class StitchedLayout(ctypes.Structure):
    _fields_ = [
        ("row_stride", c_size_t),
        ("batch_stride", c_size_t),
        ("range_bytes", c_size_t),
        ("axis_rows", c_int64),
        ("last_apart", c_int32),
        ("tiles", c_int64),
        ("tiles_added", c_int64),
        ("memory_ratio", c_double),
    ]


class View(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("batch_stride", c_int64),
        ("row_stride", c_int64),
        ("head_stride", c_int64),
    ]


class LseView(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("batch_stride", c_int64), ("head_stride", c_int64)]


class AttentionCall(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rank", c_int32),
        ("batch", c_int32),
        ("rows_q", c_int64),
        ("rows_kv", c_int64),
        ("heads_q", c_int32),
        ("heads_kv", c_int32),
        ("head_dim", c_int32),
        ("dtype", c_int32),
        ("scale", c_float),
        ("q", View),
        ("k", View),
        ("v", View),
        ("out", View),
        ("lse", LseView),
        ("kv_lengths", c_void_p),
        ("kv_lengths_stride", c_int64),
        ("stream", c_void_p),
        ("own_out", POINTER(View)),
    ]


AttentionKernel = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(AttentionCall))


class UlyssesOptions(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("batch", c_int32),
        ("heads_q", c_int32),
        ("heads_kv", c_int32),
        ("head_dim", c_int32),
        ("rows_q", POINTER(c_int64)),
        ("rows_kv", POINTER(c_int64)),
        ("text_q", c_int64),
        ("text_kv", c_int64),
        ("text_front", c_int32),
        ("dtype", c_int32),
        ("with_lse", c_int32),
        ("with_lengths", c_int32),
        ("out_pitch", c_int64),
        ("layout", c_int32),
        ("gathered_only", c_int32),
        ("buffers", c_int32),
        ("kernel", AttentionKernel),
        ("user", c_void_p),
        ("kernel_returns_packed", c_int32),
        ("tile_rows", c_int64),
        ("builtin", c_int32),
        ("masked", c_int32),
    ]


class Destination(ctypes.Structure):
    _fields_ = [
        ("out", View),
        ("text_out", View),
        ("head_scale", c_void_p),
        ("head_scale_batch", c_int64),
        ("head_scale_row", c_int64),
    ]


class GatheredInput(ctypes.Structure):
    _fields_ = [
        ("q", View),
        ("k", View),
        ("v", View),
        ("kv_lengths", c_void_p),
        ("scale", c_float),
        ("to", Destination),
    ]


class Norm(ctypes.Structure):
    _fields_ = [
        ("kind", c_int32),
        ("rounding", c_int32),
        ("weight_fp32", c_int32),
        ("weight", c_void_p),
        ("eps", c_float),
    ]


class Rotary(ctypes.Structure):
    _fields_ = [
        ("kind", c_int32),
        ("table", c_int32),
        ("math", c_int32),
        ("table_fp32", c_int32),
        ("dims", c_int32),
        ("step", c_int32),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("batch_stride", c_int64),
        ("row_stride", c_int64),
        ("head_stride", c_int64),
    ]


class Projection(ctypes.Structure):
    _fields_ = [
        ("image", View),
        ("text", View),
        ("norm", Norm),
        ("text_norm", Norm),
        ("rotary", Rotary),
        ("text_rotary", Rotary),
    ]


class ShardedInput(ctypes.Structure):
    _fields_ = [
        ("q", Projection),
        ("k", Projection),
        ("v", Projection),
        ("kv_lengths", c_void_p),
        ("scale", c_float),
        ("to", Destination),
    ]


class UlyssesResult(ctypes.Structure):
    _fields_ = [("out", View), ("text_out", View), ("lse", LseView), ("text_lse", LseView)]


class MoeOptions(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("max_tokens", c_int32),
        ("hidden", c_int32),
        ("intermediate", c_int32),
        ("experts", c_int32),
        ("top_k", c_int32),
        ("type", c_int32),
        ("clamp", c_float),
        ("order", c_char_p),
        ("ring_blocks", c_int32),
        ("workspace_limit", c_uint64),
        ("bulk_stores", c_int32),
        ("blocks", c_int32),
        ("agree_on_calls", c_int32),
        ("shared_expert", c_int32),
    ]


class MoeWeights(ctypes.Structure):
    _fields_ = [("w1", c_void_p), ("w2", c_void_p), ("s1", c_void_p), ("s2", c_void_p)]


class MoeInput(ctypes.Structure):
    _fields_ = [
        ("tokens", c_int32),
        ("x", c_void_p),
        ("x_scale", c_void_p),
        ("experts", c_void_p),
        ("weights", c_void_p),
        ("tokens_at", c_void_p),
        ("y", c_void_p),
    ]


class BlockSparseTensors(ctypes.Structure):
    _fields_ = [("q", View), ("k", View), ("v", View), ("out", View), ("lse", c_void_p)]


class BlockSparseOptions(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("dtype", c_int32),
        ("head_dim", c_int32),
        ("batch", c_int32),
        ("heads_q", c_int32),
        ("heads_kv", c_int32),
        ("rows_q", c_int64),
        ("rows_kv", c_int64),
        ("tensors", BlockSparseTensors),
        ("scale", c_float),
        ("mask", c_void_p),
        ("on_host", c_int32),
    ]


class TokenLayout(ctypes.Structure):
    _fields_ = [("text", c_int64), ("frames", c_int64), ("height", c_int64), ("width", c_int64)]


class SparseMassOptions(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("dtype", c_int32),
        ("head_dim", c_int32),
        ("heads_q", c_int32),
        ("heads_kv", c_int32),
        ("rows", c_int64),
        ("q", View),
        ("k", View),
        ("scale", c_float),
        ("lse", c_void_p),
        ("sampled_rows", POINTER(c_int64)),
        ("sampled_count", c_size_t),
        ("on_host", c_int32),
    ]


class SparseSizes(ctypes.Structure):
    _fields_ = [
        ("layers", c_int64),
        ("steps", c_int64),
        ("heads", c_int64),
        ("prompts", c_int64),
        ("blocks", c_int64),
        ("layout", TokenLayout),
        ("sampled_rows", c_int64),
        ("density", c_double),
        ("strength", c_double),
    ]


_STREAMS = [c_void_p, c_size_t]
# name: (result, arguments); a result of `int` is a status, checked by call().
_FUNCTIONS = {
    "xstage_version": (c_char_p, []),
    "xstage_last_error": (c_char_p, []),
    "xstage_fabric_create": (c_int, [POINTER(FabricOptions), POINTER(c_void_p)]),
    "xstage_fabric_destroy": (None, [c_void_p]),
    "xstage_fabric_world": (c_int, [c_void_p]),
    "xstage_fabric_backend": (c_int, [c_void_p]),
    "xstage_fabric_fallback_reason": (c_char_p, [c_void_p]),
    "xstage_fabric_page_bytes": (c_size_t, [c_void_p]),
    "xstage_fabric_barrier": (c_int, [c_void_p, *_STREAMS]),
    "xstage_fabric_synchronize": (c_int, [c_void_p, *_STREAMS]),
    "xstage_fabric_check": (c_int, [c_void_p]),
    "xstage_stitched_tensor_create": (c_int, [c_void_p, POINTER(StitchedOptions), POINTER(c_void_p)]),
    "xstage_stitched_tensor_destroy": (None, [c_void_p]),
    "xstage_stitched_tensor_layout": (c_int, [c_void_p, POINTER(StitchedLayout)]),
    "xstage_stitched_tensor_range": (c_int, [c_void_p, c_int, POINTER(c_void_p)]),
    "xstage_stitched_tensor_receive": (c_int, [c_void_p, c_int, c_int, POINTER(c_void_p)]),
    "xstage_stitched_tensor_offset": (c_int, [c_void_p, c_int, c_int64, POINTER(c_size_t)]),
    "xstage_stitched_tensor_begin": (c_int, [c_void_p, c_int, *_STREAMS]),
    "xstage_stitched_tensor_publish": (c_int, [c_void_p, c_int, *_STREAMS]),
    "xstage_stitched_tensor_acquire": (c_int, [c_void_p, c_int, *_STREAMS]),
    "xstage_stitched_tensor_exchange": (c_int, [c_void_p, c_int, *_STREAMS]),
    "xstage_ulysses_create": (c_int, [c_void_p, POINTER(UlyssesOptions), POINTER(c_void_p)]),
    "xstage_ulysses_destroy": (None, [c_void_p]),
    "xstage_ulysses_describe": (c_char_p, [c_void_p]),
    "xstage_ulysses_memory_bytes": (c_size_t, [c_void_p]),
    "xstage_ulysses_heads": (c_int, [c_void_p, c_int, POINTER(c_int32), POINTER(c_int32)]),
    "xstage_ulysses_attend_and_scatter": (c_int, [c_void_p, c_void_p, c_size_t, *_STREAMS, c_void_p]),
    "xstage_ulysses_attend": (c_int, [c_void_p, c_void_p, c_size_t, *_STREAMS, c_void_p]),
    "xstage_ulysses_use_buffer": (c_int, [c_void_p, c_int]),
    "xstage_ulysses_out_memory": (c_int, [c_void_p, c_int, c_int, POINTER(View)]),
    "xstage_moe_workspace_bytes": (c_int, [POINTER(MoeOptions), c_int, POINTER(c_uint64)]),
    "xstage_moe_create": (c_int, [c_void_p, POINTER(MoeOptions), c_void_p, c_size_t, POINTER(c_void_p)]),
    "xstage_moe_destroy": (None, [c_void_p]),
    "xstage_moe_set_order": (c_int, [c_void_p, c_char_p]),
    "xstage_moe_run": (c_int, [c_void_p, c_void_p, c_size_t, *_STREAMS]),
    "xstage_block_mask_create": (c_int, [c_int32, c_int32, c_int64, c_int64, c_void_p, POINTER(c_void_p)]),
    "xstage_block_mask_destroy": (None, [c_void_p]),
    "xstage_block_mask_with_dense": (c_int, [c_void_p, c_int64, c_int64, POINTER(c_void_p)]),
    "xstage_block_mask_bits": (c_int, [c_void_p, c_void_p]),
    "xstage_block_mask_density": (c_int, [c_void_p, c_int32, c_int32, POINTER(c_double)]),
    "xstage_block_mask_heads": (c_int, [c_void_p, POINTER(c_int32), c_int32, POINTER(c_void_p)]),
    "xstage_block_mask_balance": (c_int, [c_void_p, c_int32, POINTER(c_int32), POINTER(c_double)]),
    "xstage_block_sparse_create": (c_int, [POINTER(BlockSparseOptions), POINTER(c_void_p)]),
    "xstage_block_sparse_destroy": (None, [c_void_p]),
    "xstage_block_sparse_attention": (c_int, [c_void_p, POINTER(BlockSparseTensors), c_void_p]),
    "xstage_ulysses_set_mask": (c_int, [c_void_p, c_void_p]),
    "xstage_sparse_mass": (c_int, [POINTER(SparseMassOptions), c_void_p, c_void_p, c_void_p]),
    "xstage_sparse_maps_create": (c_int, [POINTER(TokenLayout), c_int64, c_int64, c_int64, POINTER(c_void_p)]),
    "xstage_sparse_maps_read": (c_int, [c_char_p, POINTER(c_void_p)]),
    "xstage_sparse_maps_write": (c_int, [c_void_p, c_char_p]),
    "xstage_sparse_maps_destroy": (None, [c_void_p]),
    "xstage_sparse_maps_add": (c_int, [c_void_p, c_int64, c_int64, c_void_p, c_void_p]),
    "xstage_sparse_maps_end_prompt": (c_int, [c_void_p]),
    "xstage_sparse_maps_sizes": (c_int, [c_void_p, POINTER(SparseSizes)]),
    "xstage_sparse_maps_rows": (c_int, [c_void_p, POINTER(c_int64)]),
    "xstage_sparse_maps_remainders": (c_int, [c_void_p, c_int64, c_void_p]),
    "xstage_sparse_maps_tune": (c_int, [c_void_p, c_double, c_double, c_double, c_double]),
    "xstage_sparse_maps_budgets": (c_int, [c_void_p, c_int64, c_int64, POINTER(c_float)]),
    "xstage_sparse_maps_fidelity": (
        c_int,
        [c_void_p, c_int64, c_int64, c_int64, c_float, POINTER(c_double), POINTER(c_double)],
    ),
    "xstage_sparse_maps_mask": (
        c_int,
        [c_void_p, c_int64, POINTER(c_float), c_double, POINTER(TokenLayout), POINTER(c_void_p)],
    ),
    "xstage_dlpack_make": (
        c_int,
        [c_void_p, c_int32, c_int32, c_int32, c_int32, POINTER(c_int64), POINTER(c_int64), POINTER(c_void_p)],
    ),
}


def _find() -> pathlib.Path:
    given = os.environ.get("XSTAGE_LIBRARY")
    path = pathlib.Path(given) if given else pathlib.Path(__file__).with_name("lib") / "libxstage.so"
    if not path.exists():
        raise Unsupported(
            f"{path} is missing: install the wheel (./dev wheel), or name a built libxstage.so in XSTAGE_LIBRARY"
        )
    return path


class _Library:
    """Loads on first use, so that importing the package costs nothing."""

    def __getattr__(self, name):
        loaded = ctypes.CDLL(str(_find()))
        for function, (result, arguments) in _FUNCTIONS.items():
            entry = getattr(loaded, function)
            entry.restype = result
            entry.argtypes = arguments
            setattr(self, function, entry)
        return self.__dict__[name]


lib = _Library()


def error_of(status: int) -> XstageError:
    text = lib.xstage_last_error().decode(errors="replace")
    return BY_STATUS.get(status, XstageError)(text)


def check(status: int) -> None:
    if status:
        raise error_of(status)
