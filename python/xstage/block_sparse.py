"""Attention that computes only the blocks of 128 query rows x 128 keys that a mask keeps. See docs/sparse.md."""

from __future__ import annotations

import ctypes
import sys
import weakref
from ctypes import c_double, c_int32, c_uint32, c_void_p
from typing import Sequence

from xstage import _abi, _arrays, _checks
from xstage._errors import BadInput

BLOCK = 128
_MOST_PLANS = 16
_by_address: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


def blocks_of(rows: int) -> int:
    return (rows + BLOCK - 1) // BLOCK


class BlockMask:
    """Which blocks are computed: a bit for each (batch, head, query block, key block). Does not change.

    words: uint32 (or int32) [batches, heads, ceil(q_rows / 128), ceil(ceil(kv_rows / 128) / 32)], key block v in bit
        v % 32 of word v // 32, in host memory; copied. None: every block, of `batches` and `heads`.
    batches is 1 or the attention's, heads 1, its key heads or its heads. kv_rows: default q_rows.

    Raises BadInput for a wrong number of words, or a bit behind the last key block.
    """

    def __init__(self, words, q_rows: int, kv_rows: int | None = None, *, batches: int = 1, heads: int = 1):
        self.q_rows, self.kv_rows = q_rows, q_rows if kv_rows is None else kv_rows
        bits = None
        if words is not None:
            found = _arrays.describe(words, "words")
            batches, heads = self._check(found)
            bits = found.data
        handle = c_void_p()
        _abi.check(
            _abi.lib.xstage_block_mask_create(batches, heads, self.q_rows, self.kv_rows, bits, ctypes.byref(handle))
        )
        self._take(handle, batches, heads)

    def _check(self, found) -> tuple[int, int]:
        expected = (blocks_of(self.q_rows), (blocks_of(self.kv_rows) + 31) // 32)
        if len(found.shape) != 4 or found.shape[2:] != expected:
            raise BadInput(
                f"words are {list(found.shape)}, expected [batches, heads, {expected[0]}, {expected[1]}] for "
                f"{self.q_rows} query rows and {self.kv_rows} keys"
            )
        if found.dtype not in ("uint32", "int32"):
            raise BadInput(f"words are {found.dtype}, expected uint32 or int32; BlockMask.pack takes booleans")
        if found.device[0] != _arrays.CPU:
            raise BadInput("words are on a GPU: a mask is planned on the host, pass words.cpu()")
        step = 1
        for extent, stride in zip(reversed(found.shape), reversed(found.strides)):
            if extent > 1 and stride != step:
                raise BadInput("words must be contiguous")
            step *= extent
        return found.shape[0], found.shape[1]

    def _take(self, handle, batches: int, heads: int) -> None:
        self.handle, self.batches, self.heads = handle, batches, heads
        self._end = weakref.finalize(self, _destroy_mask, handle.value)
        self.shape = (batches, heads, blocks_of(self.q_rows), (blocks_of(self.kv_rows) + 31) // 32)
        self._plans: dict = {}
        self._words = self._whole = None

    @classmethod
    def _of(cls, handle, batches: int, heads: int, q_rows: int, kv_rows: int) -> BlockMask:
        mask = cls.__new__(cls)
        mask.q_rows, mask.kv_rows = q_rows, kv_rows
        mask._take(handle, batches, heads)
        return mask

    @classmethod
    def pack(cls, kept, q_rows: int, kv_rows: int | None = None) -> BlockMask:
        """From booleans [(batches,) (heads,) query blocks, key blocks], of torch or numpy; True: computed."""
        import numpy

        if _arrays.is_torch(kept):
            kept = kept.cpu().numpy()
        kept = numpy.asarray(kept)
        if kept.dtype != bool or not 2 <= kept.ndim <= 4:
            raise BadInput(f"kept is {kept.dtype} {list(kept.shape)}, expected bool [.., query blocks, key blocks]")
        kept = kept.reshape((1,) * (4 - kept.ndim) + kept.shape)
        expected = (blocks_of(q_rows), blocks_of(q_rows if kv_rows is None else kv_rows))
        if kept.shape[2:] != expected:
            raise BadInput(f"kept has {list(kept.shape[2:])} blocks, expected {list(expected)} of {BLOCK} rows")
        wide = numpy.zeros((*kept.shape[:3], (kept.shape[3] + 31) // 32 * 32), bool)
        wide[..., : kept.shape[3]] = kept
        words = numpy.packbits(wide, axis=-1, bitorder="little").view("<u4")
        return cls(words, q_rows, kv_rows)

    @property
    def words(self):
        """The bits as memory of this object, ctypes uint32; `numpy()` and `torch()` show them."""
        if self._words is None:
            count = self.shape[0] * self.shape[1] * self.shape[2] * self.shape[3]
            self._words = (c_uint32 * count)()
            _abi.check(_abi.lib.xstage_block_mask_bits(self.handle, self._words))
            _by_address[ctypes.addressof(self._words)] = self
        return self._words

    def numpy(self):
        """uint32 [batches, heads, query blocks, words]; not to be written to."""
        import numpy

        return numpy.frombuffer(self.words, numpy.uint32).reshape(self.shape)

    def torch(self):
        """The same as int32, on the CPU: what the operator torch.ops.xstage.block_sparse_attention takes."""
        import torch

        tensor = torch.frombuffer(self.words, dtype=torch.int32).reshape(self.shape)
        tensor._xstage_mask = self  # the memory lives as long as the tensor
        return tensor

    def unpack(self):
        """numpy bool [batches, heads, query blocks, key blocks]."""
        import numpy

        bits = numpy.unpackbits(self.numpy().view(numpy.uint8), axis=-1, bitorder="little")
        return bits[..., : blocks_of(self.kv_rows)].astype(bool)

    def with_dense(self, first: int, last: int) -> BlockMask:
        """Another mask that also keeps all pairs of query rows and of keys [first, last), as text needs."""
        handle = c_void_p()
        _abi.check(_abi.lib.xstage_block_mask_with_dense(self.handle, first, last, ctypes.byref(handle)))
        return BlockMask._of(handle, self.batches, self.heads, self.q_rows, self.kv_rows)

    def with_heads(self, order: Sequence[int]) -> BlockMask:
        """Another mask of these heads, in this order."""
        handle, count = c_void_p(), len(order)
        _abi.check(
            _abi.lib.xstage_block_mask_heads(self.handle, (c_int32 * count)(*order), count, ctypes.byref(handle))
        )
        return BlockMask._of(handle, self.batches, count, self.q_rows, self.kv_rows)

    def balance(self, ranks: int) -> tuple[list[int], float, float]:
        """An order of the heads in which `ranks` equal runs of them have about equally much to do.

        Ranks of Ulysses attention compute such runs. Returns the order, and the busiest run's load over the mean: as
        the heads stand, and in the order. Raises BadInput if the ranks do not divide the heads.
        """
        order, load = (c_int32 * self.heads)(), (c_double * 2)()
        _abi.check(_abi.lib.xstage_block_mask_balance(self.handle, ranks, order, load))
        return list(order), load[0], load[1]

    def density(self, batch: int = -1, head: int = -1) -> float:
        """Kept share of the query-key pairs of one head, or of all."""
        found = c_double()
        _abi.check(_abi.lib.xstage_block_mask_density(self.handle, batch, head, ctypes.byref(found)))
        return found.value

    @property
    def keeps_everything(self) -> bool:
        """Whether no block is left out: dense attention then."""
        if self._whole is None:
            self._whole = self.density() == 1
        return self._whole

    def __repr__(self) -> str:
        return f"<xstage.BlockMask {list(self.shape[:3])} of {self.kv_rows} keys, density {self.density():.4f}>"


def _destroy_mask(address: int) -> None:
    _abi.lib.xstage_block_mask_destroy(address)


class _Plan:
    """The C plan of a mask for tensors of one shape, and the structures of its calls."""

    def __init__(self, mask, options, tensors):
        handle = c_void_p()
        options.tensors = tensors
        _abi.check(_abi.lib.xstage_block_sparse_create(ctypes.byref(options), ctypes.byref(handle)))
        self.handle, self.tensors = handle, tensors
        self.pointer = ctypes.pointer(tensors)
        self.views = (tensors.q, tensors.k, tensors.v, tensors.out)
        self._end = weakref.finalize(self, _abi.lib.xstage_block_sparse_destroy, handle.value)


class _Shape:
    """What _checks.fill asks of a context."""

    class _Where:
        def __init__(self, device):
            self._device = device

        def device_of(self, _local):
            return self._device

    def __init__(self, batch, head_dim, dtype, device):
        self.batch, self.head_dim, self.dtype = batch, head_dim, dtype
        self.group, self.fallback_reason = self._Where(device), ""


def _make_plan(mask: BlockMask, q, k, v, out, lse, scale: float) -> _Plan:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise BadInput("called inside a CUDA graph capture, but this mask has no plan yet: make one eager call first")
    first, keys = _arrays.describe(q, "q"), _arrays.describe(k, "k")
    for found, name in ((first, "q"), (keys, "k")):
        if len(found.shape) != 4:
            raise BadInput(f"{name} is {list(found.shape)}, expected [B, S, H, D]")
    batch, rows, heads, dim = first.shape
    kv_rows, kv_heads = keys.shape[1:3]
    if first.dtype not in ("bfloat16", "float16", "float32"):
        raise BadInput(f"q is {first.dtype}: attention works on bfloat16, float16 or float32")
    shape = _Shape(batch, dim, first.dtype, first.device)
    tensors = _abi.BlockSparseTensors()
    _checks.fill(shape, tensors.q, q, rows, heads, "q")
    _checks.fill(shape, tensors.k, k, kv_rows, kv_heads, "k")
    _checks.fill(shape, tensors.v, v, kv_rows, kv_heads, "v")
    _checks.fill(shape, tensors.out, out, rows, heads, "out")
    if lse is not None:
        tensors.lse = _arrays.describe(lse).data
    options = _abi.BlockSparseOptions(
        dtype=_abi.DTYPES[first.dtype], head_dim=dim, batch=batch, heads_q=heads, heads_kv=kv_heads, rows_q=rows,
        rows_kv=kv_rows, scale=scale, mask=mask.handle, on_host=int(first.device[0] == _arrays.CPU),
    )  # fmt: skip
    return _Plan(mask, options, tensors)


def _empty(like, shape: Sequence[int], dtype: str | None = None):
    if _arrays.is_torch(like):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype) if dtype else like.dtype, device=like.device)
    import numpy

    return numpy.empty(shape, dtype or _arrays.describe(like).dtype)


def block_sparse_attention(q, k, v, mask, *, scale: float | None = None, out=None, return_lse: bool = False):
    """softmax(scale * q k^T) v over the blocks that `mask` keeps. Forward only.

    q: [B, S, H, D]; k, v: [B, S_kv, H_kv, D], H_kv a divisor of H; last dimension contiguous. On a GPU (Hopper)
        bfloat16 or float16, D 64 or 128, addresses and strides multiples of 16 bytes; on the CPU float32 too and
        any D, slowly. mask: a BlockMask, or its words (`BlockMask.torch()`; other words are planned anew in each
        call). scale: default 1/sqrt(D). out: [B, S, H, D] for the result.

    Returns out, and with return_lse also the fp32 LSE [B, H, S]. Query rows without a kept block give 0 and -inf.
    Under torch.compile it is the operator torch.ops.xstage.block_sparse_attention. The first call of a mask and
    shape plans, which a CUDA graph capture cannot. Raises BadInput and Unsupported.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.compiler.is_compiling():
        from xstage import library

        return library.traced_sparse(q, k, v, mask, scale, out, return_lse)
    if not isinstance(mask, BlockMask):
        mask = _mask_of_words(mask, q, k)
    batch, rows, heads, _ = q.shape
    if out is None:
        out = _empty(q, q.shape)
    lse = _empty(q, (batch, heads, rows), "float32") if return_lse else None
    key = (_checks.layout(q), _checks.layout(k), _checks.layout(v), _checks.layout(out), return_lse, scale)
    plan = mask._plans.get(key)
    if plan is None:
        if len(mask._plans) >= _MOST_PLANS:
            mask._plans.pop(next(iter(mask._plans)))
        plan = mask._plans[key] = _make_plan(mask, q, k, v, out, lse, scale or 0.0)
    else:
        address = _checks.address
        a, b, c, d = plan.views
        a.data, b.data, c.data, d.data = address(q), address(k), address(v), address(out)
        plan.tensors.lse = None if lse is None else address(lse)
    stream = None
    if torch is not None and _arrays.is_torch(q) and q.is_cuda:
        stream = torch._C._cuda_getCurrentRawStream(q.device.index)
    _abi.check(_abi.lib.xstage_block_sparse_attention(plan.handle, plan.pointer, stream))
    return (out, lse) if return_lse else out


def _mask_of_words(words, q, k) -> BlockMask:
    known = _by_address.get(_arrays.describe(words, "mask").data)
    if known is not None and tuple(words.shape) == known.shape and known.q_rows == q.shape[1]:
        return known
    return BlockMask(words, q.shape[1], k.shape[1])
