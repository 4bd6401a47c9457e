"""Which blocks of attention a model's heads need: found from a few prompts, spent as a budget. See docs/sparse.md.

    maps = Maps(layout, layers=30, steps=50, heads=12)
    for each prompt: maps.add(layer, step, q, k) for every layer and step, then maps.end_prompt()
    maps.tune(density=0.5)
    mask = maps.mask(layer, step)                      # an xstage.BlockMask for block_sparse_attention

xstage.adapters.diffusers_sparse does this for diffusers' Wan transformer.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from ctypes import c_double, c_float, c_int64, c_uint16, c_void_p
from dataclasses import dataclass
from typing import Sequence

from xstage import _abi, _arrays
from xstage._errors import BadInput
from xstage.block_sparse import BlockMask, blocks_of


@dataclass(frozen=True)
class TokenLayout:
    """Tokens of a sequence: `text` leading ones, then frames x height x width in raster order."""

    frames: int
    height: int
    width: int
    text: int = 0

    @property
    def rows(self) -> int:
        return self.text + self.frames * self.height * self.width

    def _struct(self) -> _abi.TokenLayout:
        return _abi.TokenLayout(self.text, self.frames, self.height, self.width)


def attention_mass(q, k, rows: Sequence[int] = (), *, scale: float | None = None, lse=None):
    """Attention of each query block by key block, and of single `rows`, without the S x S matrix.

    q: [S, H, D], k: [S, H_kv, D], last dimension contiguous; float32 on the CPU, bfloat16 or float16 anywhere (on
    a GPU D a multiple of 8 up to 128). lse: fp32 [H, S] that a dense attention of them gave; it saves a pass.

    Returns ctypes arrays: double [H][blocks][blocks], whose rows sum to 1, and float [H][rows][blocks].
    """
    found, keys = _arrays.describe(q, "q"), _arrays.describe(k, "k")
    for one, name in ((found, "q"), (keys, "k")):
        if len(one.shape) != 3 or (one.strides[2] != 1 and one.shape[2] > 1):
            raise BadInput(f"{name} is {list(one.shape)}, expected [S, H, D] with a contiguous last dimension")
    if found.dtype not in ("bfloat16", "float16", "float32") or (keys.dtype, keys.device) != (found.dtype, found.device):
        raise BadInput(f"q is {found.dtype}, k {keys.dtype}: one of bfloat16, float16 and float32, in one memory")
    if keys.shape[0] != found.shape[0] or keys.shape[2] != found.shape[2]:
        raise BadInput(f"q is {list(found.shape)}, k {list(keys.shape)}: self-attention has as many keys as queries")
    s, heads, dim = found.shape
    options = _abi.SparseMassOptions(
        dtype=_abi.DTYPES[found.dtype], head_dim=dim, heads_q=heads, heads_kv=keys.shape[1], rows=s,
        q=_abi.View(found.data, 0, *found.strides[:2]), k=_abi.View(keys.data, 0, *keys.strides[:2]),
        scale=scale or 0.0, on_host=int(found.device[0] == _arrays.CPU),
    )  # fmt: skip
    stream = None
    if found.device[0] == _arrays.CUDA and "torch" in sys.modules:
        stream = sys.modules["torch"]._C._cuda_getCurrentRawStream(found.device[1])
    if lse is not None:
        sums = _arrays.describe(lse, "lse")
        if sums.shape != (heads, s) or sums.strides != (s, 1) or sums.dtype != "float32":
            raise BadInput(f"lse is {sums.dtype} {list(sums.shape)}, expected contiguous float32 [{heads}, {s}]")
        options.lse = sums.data
    rows = list(rows)
    options.sampled_rows, options.sampled_count = (c_int64 * max(1, len(rows)))(*rows), len(rows)
    n = blocks_of(s)
    mass, row_mass = (c_double * (heads * n * n))(), (c_float * max(1, heads * len(rows) * n))()
    _abi.check(
        _abi.lib.xstage_sparse_mass(ctypes.byref(options), stream, mass, row_mass if rows else None)
    )
    return mass, row_mass


class Maps:
    """Threshold maps of a model's layers (WEST), and a budget for every layer, step and head (FAST).

    layout: of the calibration's video. steps: of denoising, each with its own budgets; the maps are the layers',
    the lowest thresholds over prompts and steps.
    """

    def __init__(self, layout: TokenLayout, *, layers: int, steps: int, heads: int):
        handle = c_void_p()
        struct = layout._struct()
        _abi.check(
            _abi.lib.xstage_sparse_maps_create(ctypes.byref(struct), layers, steps, heads, ctypes.byref(handle))
        )
        self._take(handle)

    def _take(self, handle) -> None:
        self._handle = handle
        self._end = weakref.finalize(self, _destroy, handle.value)
        sizes = self._sizes()
        self.layers, self.steps, self.heads, self.blocks = sizes.layers, sizes.steps, sizes.heads, sizes.blocks
        t = sizes.layout
        self.layout = TokenLayout(t.frames, t.height, t.width, t.text)
        rows = (c_int64 * max(1, sizes.sampled_rows))()
        _abi.check(_abi.lib.xstage_sparse_maps_rows(handle, rows))
        self.sampled_rows = list(rows[: sizes.sampled_rows])
        self._masks: dict = {}
        self._judged: set = set()  # (layer, step) whose sampled rows are known

    @classmethod
    def load(cls, path) -> Maps:
        """A file that `save` or `xstage mask calibrate` wrote."""
        handle = c_void_p()
        _abi.check(_abi.lib.xstage_sparse_maps_read(os.fsencode(path), ctypes.byref(handle)))
        maps = cls.__new__(cls)
        maps._take(handle)
        return maps

    def save(self, path) -> None:
        """Safetensors, as docs/sparse.md describes; `xstage mask inspect` reads it."""
        _abi.check(_abi.lib.xstage_sparse_maps_write(self._handle, os.fsencode(path)))

    def _sizes(self) -> _abi.SparseSizes:
        sizes = _abi.SparseSizes()
        _abi.check(_abi.lib.xstage_sparse_maps_sizes(self._handle, ctypes.byref(sizes)))
        return sizes

    @property
    def prompts(self) -> int:
        """How many were calibrated with."""
        return self._sizes().prompts

    @property
    def density(self) -> float | None:
        """Mean over the budgets; None before `tune`."""
        found = self._sizes().density
        return found if found >= 0 else None

    @property
    def strength(self) -> float | None:
        """Of the schedule that `tune` found: the loss that the last layer and step may have."""
        sizes = self._sizes()
        return sizes.strength if sizes.density >= 0 else None

    def add(self, layer: int, step: int, q, k, *, scale: float | None = None, lse=None) -> None:
        """Queries and keys of one layer and step of a prompt, [S, H, D], after norms and rotation.

        Fidelity is judged by the first prompt; more samples of one prompt (guidance runs two) may be added each.
        """
        if q.shape[0] != self.layout.rows or q.shape[1] != self.heads:
            raise BadInput(f"q is {list(q.shape)}, expected [{self.layout.rows}, {self.heads}, D]")
        first = self.prompts == 0 and (layer, step) not in self._judged
        mass, row_mass = attention_mass(q, k, self.sampled_rows if first else (), scale=scale, lse=lse)
        _abi.check(_abi.lib.xstage_sparse_maps_add(self._handle, layer, step, mass, row_mass if first else None))
        self._judged.add((layer, step))
        self._masks.clear()

    def end_prompt(self) -> None:
        """A prompt is complete. Raises BadInput if a layer or step is missing."""
        _abi.check(_abi.lib.xstage_sparse_maps_end_prompt(self._handle))

    def tune(self, density: float, *, beta: float = 0.75, gamma: float = 1.0, omega: float = 1.0) -> None:
        """Budgets of this mean density, early steps and shallow layers held to more; docs/sparse.md has the schedule.

        Raises BadInput if not even the least fidelity reaches it (the message says the least density there is).
        """
        _abi.check(_abi.lib.xstage_sparse_maps_tune(self._handle, density, beta, gamma, omega))
        self._masks.clear()

    def budgets(self, layer: int, step: int) -> list[float]:
        """Top-p of each head."""
        found = (c_float * self.heads)()
        _abi.check(_abi.lib.xstage_sparse_maps_budgets(self._handle, layer, step, found))
        return list(found)

    def fidelity(self, layer: int, step: int, head: int, top_p: float) -> tuple[float, float]:
        """1 - Hellinger distance over the sampled rows with the blocks that top_p keeps: mean and worst."""
        mean, worst = c_double(), c_double()
        _abi.check(
            _abi.lib.xstage_sparse_maps_fidelity(
                self._handle, layer, step, head, top_p, ctypes.byref(mean), ctypes.byref(worst)
            )
        )
        return mean.value, worst.value

    def remainders(self, layer: int):
        """1 - threshold of each block, numpy float16 [heads, blocks, blocks]."""
        import numpy

        found = (c_uint16 * (self.heads * self.blocks * self.blocks))()
        _abi.check(_abi.lib.xstage_sparse_maps_remainders(self._handle, layer, found))
        return numpy.frombuffer(found, numpy.float16).reshape(self.heads, self.blocks, self.blocks)

    def mask(self, layer: int, step: int | None = None, *, top_p: float | Sequence[float] | None = None,
             density: float | None = None, layout: TokenLayout | None = None) -> BlockMask:  # fmt: skip
        """The mask of a layer: by the budgets of `step`, by `top_p` (one, or one per head), or of a `density`.

        layout: of another resolution or number of frames; the map is resampled then. The same question has the
        same mask object, whose plans are kept.
        """
        if sum(x is not None for x in (step, top_p, density)) != 1:
            raise BadInput("give one of step (after tune), top_p and density")
        if top_p is not None and not isinstance(top_p, (int, float)):
            top_p = tuple(top_p)
        key = (layer, step, top_p, density, layout)
        found = self._masks.get(key)
        if found is not None:
            return found
        given = None
        if step is not None:
            given = self.budgets(layer, step)
        elif top_p is not None:
            given = top_p if isinstance(top_p, tuple) else (top_p,) * self.heads
            if len(given) != self.heads:
                raise BadInput(f"{len(given)} values of top_p for {self.heads} heads")
        values = None if given is None else (c_float * self.heads)(*given)
        handle = c_void_p()
        struct = None if layout is None else ctypes.byref(layout._struct())
        _abi.check(
            _abi.lib.xstage_sparse_maps_mask(
                self._handle, layer, values, 0.0 if density is None else density, struct, ctypes.byref(handle)
            )
        )
        rows = (layout or self.layout).rows
        found = self._masks[key] = BlockMask._of(handle, 1, self.heads, rows, rows)
        return found

    def forget_masks(self) -> None:
        """Drops the masks that `mask` has given, and with the last use of each its bits and tiles on the GPU.

        They are kept for the next generation otherwise: heads * blocks * (blocks / 8 + 16) bytes each.
        """
        self._masks.clear()

    def __repr__(self) -> str:
        tuned = "" if self.density is None else f", density {self.density:.4f}"
        return (
            f"<xstage.sparse.Maps {self.layers} layers, {self.steps} steps, {self.heads} heads, {self.prompts} "
            f"prompts{tuned}>"
        )


def _destroy(address: int) -> None:
    _abi.lib.xstage_sparse_maps_destroy(address)
