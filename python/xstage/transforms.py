"""Norms and rotations that the first all-to-all applies to Q and K on their way to the owners of the heads."""

from __future__ import annotations

from xstage import _abi, _arrays
from xstage._errors import BadInput

_NORMS = {"head": 1, "full": 2}
_ROUNDINGS = {"once": 0, "twice": 1}
_KINDS = {"interleaved": 1, "halves": 2}
_TABLES = {"dimension": 0, "pair": 1, "even_odd": 2}
_MATH = {"separate": 0, "fused": 1, "each_rounded": 2}


def _choice(value, choices: dict, name: str) -> int:
    if value not in choices:
        raise BadInput(f"{name}={value!r}: choose one of {', '.join(choices)}")
    return choices[value]


class Norm:
    """y = x / sqrt(mean(x^2) + eps) * weight.

    weight: [head_dim] ("head") or [heads * head_dim] ("full"), in the tensor's dtype or float32; None: none.
    rounding: "once" (torch.nn.RMSNorm, fused) or "twice" (to the dtype before the weight; diffusers' RMSNorm).
    """

    def __init__(self, weight=None, eps: float = 1e-6, *, kind: str = "head", rounding: str = "once"):
        self.struct = _abi.Norm(
            kind=_choice(kind, _NORMS, "kind"), rounding=_choice(rounding, _ROUNDINGS, "rounding"), eps=eps
        )
        self.keep = weight
        self.dtype = "float32"
        if weight is not None:
            found = _arrays.describe(weight, "the weight of a norm")
            if len(found.shape) != 1 or found.strides[0] != 1:
                raise BadInput(f"the weight of a norm is {list(found.shape)}, expected a contiguous vector")
            self.dtype, self.size = found.dtype, found.shape[0]
            self.struct.weight, self.struct.weight_fp32 = found.data, found.dtype == "float32"

    def check(self, heads: int, head_dim: int, dtype: str) -> None:
        if self.keep is None:
            return
        expected = head_dim * (heads if self.struct.kind == 2 else 1)
        if self.size != expected:
            raise BadInput(f"the weight of a norm has {self.size} values, expected {expected}")
        if self.dtype not in ("float32", dtype):
            raise BadInput(f"the weight of a norm is {self.dtype}, must be {dtype} or float32")


class Rotary:
    """Rotation of pairs by a table of cosines and sines, for the rank's own rows.

    cos, sin: [rows, n], [B or 1, rows, n] or [B or 1, rows, heads or 1, n], in the tensor's dtype or float32.
    kind: "interleaved" (pairs 2i, 2i+1) or "halves" (i, i + n/2). table: an entry per "dimension", per "pair", or
    "even_odd" (per dimension; cos from the even entry, sin from the odd one: Wan). math: "separate" (fp32, each
    operation rounded), "fused" (multiply-add), "each_rounded" (to the dtype). dims: rotated ones (0: all).
    """

    def __init__(self, cos, sin, *, kind: str = "interleaved", table: str = "dimension", math: str = "separate",
                 dims: int = 0):  # fmt: skip
        c, s = _arrays.describe(cos, "cos"), _arrays.describe(sin, "sin")
        if (c.shape, c.strides, c.dtype) != (s.shape, s.strides, s.dtype):
            raise BadInput(f"cos {list(c.shape)} and sin {list(s.shape)} must have one shape, layout and dtype")
        axes = {2: (0,), 3: (None, 0), 4: (None, 0, None)}.get(len(c.shape))
        if axes is None:
            raise BadInput(f"cos is {list(c.shape)}, expected [rows, n], [B, rows, n] or [B, rows, heads, n]")
        # An axis of one is the same for all: no stride.
        stride = [0 if n == 1 and axes[i] is None else step for i, (n, step) in enumerate(zip(c.shape[:-1], c.strides))]
        batch = stride[0] if len(stride) > 1 else 0
        row = stride[1] if len(stride) > 1 else stride[0]
        head = stride[2] if len(stride) > 2 else 0
        self.rows, self.dtype, self.keep = c.shape[len(c.shape) > 2], c.dtype, (cos, sin)
        self.width = c.shape[-1] * (2 if table == "pair" else 1)
        self.struct = _abi.Rotary(
            kind=_choice(kind, _KINDS, "kind"), table=_choice(table, _TABLES, "table"),
            math=_choice(math, _MATH, "math"), table_fp32=c.dtype == "float32", dims=dims, step=c.strides[-1],
            cos=c.data, sin=s.data, batch_stride=batch, row_stride=row, head_stride=head,
        )  # fmt: skip

    def check(self, rows: int, head_dim: int, dtype: str) -> None:
        if self.rows < rows:
            raise BadInput(f"a rotation's table has {self.rows} rows for {rows}; pass this rank's part of it")
        if self.width < (self.struct.dims or head_dim):
            raise BadInput(f"a rotation's table covers {self.width} dimensions of {self.struct.dims or head_dim}")
        if self.dtype not in ("float32", dtype):
            raise BadInput(f"a rotation's table is {self.dtype}, must be {dtype} or float32")


_NO_NORM, _NO_ROTARY = _abi.Norm(), _abi.Rotary()


def apply(transforms, projections: dict, context, rows: dict) -> None:
    """Writes {"q": (Norm, Rotary), "k": ..., "joint_q": ..., "joint_k": ...} into the C structures."""
    unknown = set(transforms) - {"q", "k", "joint_q", "joint_k"}
    if unknown:
        raise BadInput(f"transforms of {', '.join(sorted(unknown))}: only q, k, joint_q and joint_k have them")
    for name, projection in projections.items():
        heads = context.heads if name == "q" else context.kv_heads
        for prefix, norm_field, rotary_field in (("", "norm", "rotary"), ("joint_", "text_norm", "text_rotary")):
            norm, rotary = transforms.get(prefix + name) or (None, None)
            if norm is not None:
                norm.check(heads, context.head_dim, context.dtype)
            if rotary is not None:
                rotary.check(rows[prefix + name], context.head_dim, context.dtype)
            setattr(projection, norm_field, _NO_NORM if norm is None else norm.struct)
            setattr(projection, rotary_field, _NO_ROTARY if rotary is None else rotary.struct)
