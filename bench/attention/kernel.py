"""The compiled attention kernel for Python, by ctypes: tensors are torch, [batch][row][head][dim]."""

import ctypes
import math

import torch

_I = ctypes.c_int64
_P = ctypes.c_void_p
ORDERS = {"head_major": 0, "interleaved": 1, "rotated": 2, "remote_first": 3}


class _Call(ctypes.Structure):
    _fields_ = (
        [(n, _I) for n in "type batches heads kv_heads q_rows kv_rows head_dim".split()]
        + [(n, _I) for n in "causal order rank destinations sm_limit".split()]
        + [(n, _P) for n in "q k v lse key_lengths".split()]
        + [(n, _I * 3) for n in "q_strides k_strides v_strides".split()]
        + [("out", _P * 8), ("out_strides", (_I * 3) * 8), ("out_rows", _I * 8)]
        + [("scale", ctypes.c_double), ("rescale_above", ctypes.c_double), ("instance", ctypes.c_char_p)]
        + [("mask", _P), ("mask_batches", _I), ("mask_heads", _I)]
    )


def _strides(t):
    return (_I * 3)(t.stride(0), t.stride(1), t.stride(2))


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.xstage_attention_create.restype = _P
        self.lib.xstage_attention_instance.restype = ctypes.c_char_p
        for f in ("launch", "destroy", "instance"):
            getattr(self.lib, "xstage_attention_" + f).argtypes = [_P] + ([_P] if f == "launch" else [])

    def plan(self, q, k, v, out, **options):
        return Plan(self.lib, q, k, v, out, **options)


class Plan:
    """out: one tensor, or a list of chunks of its rows, one for each destination."""

    def __init__(self, lib, q, k, v, out, lse=None, key_lengths=None, causal=False, scale=0.0,
                 instance=None, order="head_major", rank=0, sm_limit=0, mask=None, rescale_above=0.0):
        outs = out if isinstance(out, (list, tuple)) else [out]
        c = _Call()
        c.type = 0 if q.dtype == torch.bfloat16 else 1
        c.batches, c.q_rows, c.heads, c.head_dim = q.shape
        c.kv_rows, c.kv_heads = k.shape[1], k.shape[2]
        c.causal, c.order, c.rank, c.sm_limit = int(causal), ORDERS[order], rank, sm_limit
        c.destinations = len(outs)
        c.q, c.k, c.v = q.data_ptr(), k.data_ptr(), v.data_ptr()
        c.lse = lse.data_ptr() if lse is not None else None
        c.key_lengths = key_lengths.data_ptr() if key_lengths is not None else None
        c.q_strides, c.k_strides, c.v_strides = _strides(q), _strides(k), _strides(v)
        for i, o in enumerate(outs):
            c.out[i], c.out_strides[i], c.out_rows[i] = o.data_ptr(), _strides(o), o.shape[1]
        c.scale, c.rescale_above = scale, rescale_above
        c.instance = instance.encode() if instance else None
        if mask is not None:  # bool, host: [batches or 1][heads, kv_heads or 1][query blocks][key blocks]
            words = pack_mask(mask)
            c.mask, c.mask_batches, c.mask_heads = words.data_ptr(), mask.shape[0], mask.shape[1]
        error = ctypes.create_string_buffer(512)
        self.lib = lib
        self.keep = (q, k, v, outs, lse, key_lengths)
        self.handle = lib.xstage_attention_create(ctypes.byref(c), error, _I(512))
        if not self.handle:
            raise RuntimeError(error.value.decode())

    def __call__(self):
        stream = torch.cuda.current_stream().cuda_stream
        if self.lib.xstage_attention_launch(self.handle, stream):
            raise RuntimeError("launch failed")

    @property
    def instance(self):
        return self.lib.xstage_attention_instance(self.handle).decode()

    def __del__(self):
        if getattr(self, "handle", None):
            self.lib.xstage_attention_destroy(self.handle)


def pack_mask(mask):
    """One bit per block, key block v in bit v % 32 of word v / 32 of its row."""
    padded = torch.nn.functional.pad(mask.to(torch.int64), (0, -mask.shape[-1] % 32))
    bits = padded.unflatten(-1, (-1, 32)) << torch.arange(32)
    words = bits.sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).contiguous()


def flops(batches, heads, q_rows, kv_rows, head_dim, causal=False):
    """Two products; causal counts the unmasked half only (square problems)."""
    return 4 * batches * heads * q_rows * kv_rows * head_dim * (0.5 if causal else 1)


def reference(q, k, v, scale=None, causal=False, key_lengths=None):
    """float64 on the GPU, one head at a time. Returns out and lse [batch][head][row]."""
    b, s, h, d = q.shape
    t, hk = k.shape[1], k.shape[2]
    scale = scale or 1 / math.sqrt(d)
    out = torch.zeros(b, s, h, d, dtype=torch.float64, device=q.device)
    lse = torch.full((b, h, s), -math.inf, dtype=torch.float64, device=q.device)
    for i in range(b):
        n = t if key_lengths is None else int(key_lengths[i])
        if n == 0:
            continue
        for j in range(h):
            kk, vv = k[i, :n, j * hk // h].double(), v[i, :n, j * hk // h].double()
            for r in range(0, s, 4096):
                rows = slice(r, min(s, r + 4096))
                x = (q[i, rows, j].double() @ kk.T) * scale
                if causal:
                    row = torch.arange(r, rows.stop, device=q.device)[:, None]
                    x = x.masked_fill(torch.arange(n, device=q.device)[None] > row + n - s, -math.inf)
                lse[i, j, rows] = torch.logsumexp(x, -1)
                p = torch.nan_to_num(torch.exp(x - lse[i, j, rows][:, None]), nan=0.0) if causal else \
                    torch.exp(x - lse[i, j, rows][:, None])
                out[i, rows, j] = p @ vv
    return out, lse
