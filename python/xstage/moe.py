"""A mixture-of-experts layer over ranks that each hold a part of the experts, in one kernel."""

from __future__ import annotations

import ctypes
import itertools
import sys
from ctypes import c_uint64, c_void_p

from xstage import _abi, _arrays, _checks
from xstage import group as _group
from xstage._errors import BadInput, Closed

_TYPES = {"bfloat16": 0, "float8_e4m3fn": 1}
_layers: dict[str, "MegaMoe"] = {}
_numbers = itertools.count()


class MegaMoe(_group.Child):
    """y = sum over a token's experts of weight * W2 (silu(gate) * up), gate and up from W1 x.

    Collective to build, to call and to close. group: as in xstage.Ulysses.
    w1: [local experts, 2 * intermediate, hidden], gate rows first; w2: [local experts, hidden, intermediate];
        bfloat16, or float8_e4m3fn with s1, s2: a float32 scale for every 128x128 block. Lent for the life of the
        layer. hidden is a multiple of 256, intermediate of 128.
    top_k: experts of a token; max_tokens: per rank and call. experts: of all ranks (default: local * ranks).
    shared: the first expert of w1 and w2 is one that all of this rank's tokens go through, with weight 1, beside their
        top_k; the others are the local experts.
    clamp: of SwiGLU's inputs, 0 for none. order: of the expert waves, None for the one that measured best.

    On a group with several local ranks w1, w2, s1, s2 and every argument of a call are lists, one for each.
    """

    def __init__(self, group, w1, w2, *, top_k: int, max_tokens: int, s1=None, s2=None, experts: int | None = None,
                 shared: bool = False, clamp: float = 0.0, order: str | None = None, ring_blocks: int = 0, workspace_limit: int = 0,
                 blocks: int = 0):  # fmt: skip
        self._handle = c_void_p()
        self.group = g = _group.resolve(group)
        _checks.refuse_capture("this layer has not been set up")
        n = len(g.local_ranks)
        self._many = n > 1
        lists = [_checks.as_list(x, n, self._many) for x in (w1, w2, s1, s2)]
        self._keep = lists
        first, second = (_arrays.describe(x[0], name) for x, name in ((lists[0], "w1"), (lists[1], "w2")))
        if len(first.shape) != 3 or len(second.shape) != 3 or first.shape[1] != 2 * second.shape[2]:
            raise BadInput(
                f"w1 {list(first.shape)} and w2 {list(second.shape)}, expected [experts, 2 * intermediate, hidden] and "
                "[experts, hidden, intermediate]"
            )
        if first.dtype not in _TYPES:
            raise BadInput(f"w1 is {first.dtype}: the layer works on {' or '.join(_TYPES)}")
        self.dtype, (local, _, self.hidden), self.intermediate = first.dtype, first.shape, second.shape[2]
        if local <= shared:
            raise BadInput(f"w1 {list(first.shape)} holds no expert that tokens are routed to")
        self.experts, self.top_k, self.max_tokens = experts or (local - shared) * g.world, top_k, max_tokens
        fp8 = self.dtype != "bfloat16"
        block = 128
        shapes = [
            ("w1", (local, 2 * self.intermediate, self.hidden), self.dtype),
            ("w2", (local, self.hidden, self.intermediate), self.dtype),
            ("s1", (local, 2 * self.intermediate // block, self.hidden // block), "float32"),
            ("s2", (local, self.hidden // block, self.intermediate // block), "float32"),
        ]
        weights = (_abi.MoeWeights * n)()
        for (name, shape, dtype), given in zip(shapes, lists):
            for i, x in enumerate(given):
                if name[0] == "s" and not fp8:
                    if x is not None:
                        raise BadInput(f"{name} was given, and bfloat16 weights have no scales")
                    continue
                setattr(weights[i], name, _dense(g, x, shape, dtype, name))
        options = _abi.MoeOptions(
            max_tokens=max_tokens, hidden=self.hidden, intermediate=self.intermediate, experts=self.experts,
            top_k=top_k, type=_TYPES[self.dtype], clamp=clamp, order=order.encode() if order else None,
            ring_blocks=ring_blocks, workspace_limit=workspace_limit, blocks=blocks, shared_expert=shared,
        )  # fmt: skip
        size = c_uint64()
        _abi.check(_abi.lib.xstage_moe_workspace_bytes(ctypes.byref(options), g.world, ctypes.byref(size)))
        self.memory_bytes = size.value
        _abi.check(
            _abi.lib.xstage_moe_create(g.handle, ctypes.byref(options), weights, n, ctypes.byref(self._handle))
        )
        self._inputs = (_abi.MoeInput * n)()
        self.name = f"mega_moe_{next(_numbers)}"
        _layers[self.name] = self
        self._join()

    def __call__(self, x, experts, weights, *, x_scale=None, tokens_at=None, out=None):
        """x: [tokens, hidden]; experts: int32 [tokens, top_k], negative for none; weights: float32 the same.

        x_scale: float32 [tokens, hidden / 128], for fp8. tokens_at: int32 [1] in the tensors' memory, how many of the
        tokens count; what a captured graph needs when the number changes. out: bfloat16 [tokens, hidden].
        Returns out or a new tensor.
        """
        if not self._handle:
            raise Closed("this MegaMoe layer is closed: build a new one")
        n = len(self._inputs)
        lists = [_checks.as_list(a, n, self._many) for a in (x, experts, weights, x_scale, tokens_at, out)]
        found = []
        for i, (one, ids, gates, scale, count, y) in enumerate(zip(*lists)):
            tokens = one.shape[0]
            if tokens > self.max_tokens:
                raise BadInput(f"{tokens} tokens, and the layer was built for max_tokens={self.max_tokens}")
            c = self._inputs[i]
            c.tokens = tokens
            c.x = _dense(self.group, one, (tokens, self.hidden), self.dtype, "x")
            c.experts = _dense(self.group, ids, (tokens, self.top_k), "int32", "experts")
            c.weights = _dense(self.group, gates, (tokens, self.top_k), "float32", "weights")
            if self.dtype == "bfloat16":
                if scale is not None:
                    raise BadInput("x_scale was given, and bfloat16 tokens have no scales")
            else:
                c.x_scale = _dense(self.group, scale, (tokens, self.hidden // 128), "float32", "x_scale")
            c.tokens_at = None if count is None else _dense(self.group, count, (1,), "int32", "tokens_at")
            if y is None:
                torch = sys.modules.get("torch")
                if torch is None or not _arrays.is_torch(one):
                    raise BadInput("pass out=: only torch has a bfloat16 to make one of")
                y = torch.empty((tokens, self.hidden), dtype=torch.bfloat16, device=one.device)
            c.y = _dense(self.group, y, (tokens, self.hidden), "bfloat16", "out")
            found.append(y)
        streams, count = self.group.streams()
        _abi.check(_abi.lib.xstage_moe_run(self._handle, self._inputs, n, streams, count))
        return found if self._many else found[0]

    def set_order(self, order: str) -> None:
        """The order of the next calls' expert waves, for example "wave:2" or "ratio"."""
        _abi.check(_abi.lib.xstage_moe_set_order(self._handle, order.encode()))

    def close(self) -> None:
        if self._handle:
            _abi.lib.xstage_moe_destroy(self._handle)
            self._handle = c_void_p()
            _layers.pop(self.name, None)
            self._keep = []
            self._leave()


def _dense(group, x, shape, dtype: str, name: str) -> int:
    if x is None:
        raise BadInput(f"{name} is missing, expected {dtype} {list(shape)}")
    found = _arrays.describe(x, name)
    step, strides = 1, []
    for extent in reversed(found.shape):
        strides.insert(0, step)
        step *= extent
    if found.shape != tuple(shape) or found.dtype != dtype:
        raise BadInput(f"{name} is {found.dtype} {list(found.shape)}, expected {dtype} {list(shape)}")
    if step > 0 and any(n > 1 and a != b for n, a, b in zip(found.shape, found.strides, strides)):
        raise BadInput(f"{name} must be contiguous: pass {name}.contiguous()")
    kind, _ = group.device_of(0)
    if found.device[0] != kind:
        raise BadInput(f"{name} is not where the group's memory is ({'the CPU' if kind == _arrays.CPU else 'a GPU'})")
    if getattr(x, "requires_grad", False) and sys.modules["torch"].is_grad_enabled():
        raise BadInput(f"forward only: {name} requires grad; call under torch.no_grad(), or pass {name}.detach()")
    return found.data


def mega_moe(x, experts, weights, *, layer: MegaMoe, x_scale=None, tokens_at=None):
    """layer(x, experts, weights, ...) as one operator under torch.compile, without a graph break."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.compiler.is_compiling():
        from xstage import library

        return library.traced_moe(x, experts, weights, x_scale, tokens_at, layer.name)
    return layer(x, experts, weights, x_scale=x_scale, tokens_at=tokens_at)

