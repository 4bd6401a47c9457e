"""Block-sparse self-attention for diffusers' Wan transformer: calibrate, tune, run. Tried with diffusers 0.42.1.

    from xstage.adapters import diffusers_sparse

    with diffusers_sparse.calibrate(pipe.transformer, steps=50, passes=2) as calibration:
        for prompt in prompts:
            pipe(prompt, num_inference_steps=50, ...)          # dense, and watched
    maps = calibration.maps
    maps.tune(density=0.5)
    maps.save("wan.safetensors")

    with diffusers_sparse.run(pipe.transformer, maps, steps=50, passes=2):
        pipe(prompt, num_inference_steps=50, ...)

`passes`: forwards of a step; with guidance a pipeline makes two. Steps are counted by forwards, which waits for
nothing. A video of another size than the calibration's resamples the maps; of another number of steps takes the
budgets of the nearest ones. Under diffusers' context parallelism (xstage.adapters.diffusers.enable first) the
masks run over the ranks.
"""

from __future__ import annotations

import torch

from diffusers.models import attention_dispatch
from diffusers.models.transformers.transformer_wan import WanAttnProcessor, WanTransformer3DModel

from xstage import functional, sparse
from xstage._errors import BadInput
from xstage.adapters import diffusers as adapter
from xstage.block_sparse import block_sparse_attention

NAME = "xstage_sparse"
_entered: list = []  # (hooks, layer) of the processor whose attention is being computed


class _Sparse:
    """Mixed into a processor: tells the backend whose attention it is."""

    # diffusers reads the signature to see what a processor takes.
    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None):
        _entered.append((self._hooks, self._layer))
        try:
            return super().__call__(attn, hidden_states, encoder_hidden_states, attention_mask, rotary_emb)
        finally:
            _entered.pop()


class Hooks:
    """Processors and a counter of steps in a Wan transformer, for the length of a `with` block."""

    def __init__(self, model, steps: int, passes: int):
        if not isinstance(model, WanTransformer3DModel):
            raise BadInput(f"{type(model).__name__}: these hooks are for diffusers' WanTransformer3DModel")
        if steps < 1 or passes < 1:
            raise BadInput(f"steps={steps}, passes={passes}: each must be at least 1")
        self.model, self.steps, self.passes = model, steps, passes
        self.heads = model.config.num_attention_heads
        self.layout: sparse.TokenLayout | None = None
        self.forwards = 0

    @property
    def step(self) -> int:
        """Of the forward that runs, or ran last."""
        return max(0, self.forwards - 1) // self.passes

    def restart(self) -> None:
        """The next forward is the first of a generation; needed only after one that was broken off."""
        self.forwards = 0

    def __enter__(self):
        adapter.add_backend(NAME, _backend)
        self._before = []
        for layer, block in enumerate(self.model.blocks):
            processor = block.attn1.processor
            kind = type(processor)
            if not issubclass(kind, WanAttnProcessor) or issubclass(kind, _Sparse):
                raise BadInput(f"block {layer} has {kind.__name__}, expected a WanAttnProcessor without such hooks")
            hooked = type(f"XstageSparse{kind.__name__}", (_Sparse, kind), {})()
            hooked.__dict__.update(processor.__dict__)
            hooked._hooks, hooked._layer = self, layer
            hooked._dense_backend, hooked._attention_backend = processor._attention_backend, NAME
            self._before.append((block.attn1, processor))
            block.attn1.set_processor(hooked)
        # In front of others: context parallelism's own hook shards what this one must see whole.
        self._hook = self.model.register_forward_pre_hook(self._begin, prepend=True, with_kwargs=True)
        return self

    def __exit__(self, *_) -> None:
        self._hook.remove()
        for attn, processor in self._before:
            attn.set_processor(processor)

    def _begin(self, model, args, kwargs) -> None:
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        frames, height, width = (n // p for n, p in zip(hidden.shape[2:], model.config.patch_size))
        self.layout = sparse.TokenLayout(frames, height, width)
        if self.forwards == self.steps * self.passes:
            self.forwards = 0
        self.forwards += 1
        self.begin()

    def begin(self) -> None:
        """Before each forward."""

    def attend(self, layer: int, query, key, value, scale, dense, parallel):
        raise NotImplementedError


def _backend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False,
             return_lse=False, _parallel_config=None):  # fmt: skip
    if not _entered:
        raise BadInput(f"the backend {NAME!r} works in the blocks of calibrate() and run() alone")
    hooks, layer = _entered[-1]
    backend = hooks._before[layer][1]._attention_backend

    def dense():
        return attention_dispatch.dispatch_attention_fn(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, backend=backend,
            parallel_config=_parallel_config,
        )  # fmt: skip

    if attn_mask is not None or is_causal or dropout_p:
        raise BadInput("Wan's self-attention has neither masks nor dropout; block masks cannot join others")
    return hooks.attend(layer, query, key, value, scale, dense, _parallel_config)


class Calibration(Hooks):
    """Runs densely, as without it, and takes every prompt's queries and keys into `maps`."""

    def __init__(self, model, steps: int, passes: int):
        super().__init__(model, steps, passes)
        self.maps: sparse.Maps | None = None

    def begin(self) -> None:
        if self.maps is None:
            self.maps = sparse.Maps(self.layout, layers=len(self.model.blocks), steps=self.steps, heads=self.heads)
        elif self.layout != self.maps.layout:
            raise BadInput(f"prompts of {self.maps.layout} and of {self.layout}: calibrate with videos of one size")

    def attend(self, layer, query, key, value, scale, dense, parallel):
        if parallel is not None and getattr(parallel, "context_parallel_config", None) is not None:
            raise BadInput("calibrate on one rank: threshold maps need whole sequences")
        out = dense()
        for sample in range(query.shape[0]):
            self.maps.add(layer, self.step, query[sample].detach(), key[sample].detach(), scale=scale)
        last = layer == len(self.model.blocks) - 1
        if last and self.forwards == self.steps * self.passes:
            self.maps.end_prompt()
        return out


class SparseRun(Hooks):
    """Self-attention by the masks of `maps`. With `measure`, `errors[step][layer]` has the relative error of each
    attention's output, ||sparse - dense|| / ||dense||, in the passes since the step began (their largest)."""

    def __init__(self, model, maps: sparse.Maps, steps: int, passes: int, density: float | None, measure: bool):
        super().__init__(model, steps, passes)
        if maps.heads != self.heads or maps.layers != len(model.blocks):
            raise BadInput(
                f"the maps are of {maps.layers} layers and {maps.heads} heads, the model has {len(model.blocks)} "
                f"and {self.heads}"
            )
        if density is None and maps.density is None:
            raise BadInput("the maps have no budgets: maps.tune(density), or pass density= for one of all heads")
        self.maps, self.density, self.measure = maps, density, measure
        self._orders: dict = {}
        self.errors = [[0.0] * maps.layers for _ in range(steps)]

    def begin(self) -> None:
        if self.measure and (self.forwards - 1) % self.passes == 0:
            self.errors[self.step] = [0.0] * self.maps.layers

    def mask_of(self, layer: int):
        """The mask of a layer at the step that runs."""
        layout = None if self.layout == self.maps.layout else self.layout
        if self.density is not None:
            return self.maps.mask(layer, density=self.density, layout=layout)
        step = self.step * self.maps.steps // self.steps
        return self.maps.mask(layer, step, layout=layout)

    def attend(self, layer, query, key, value, scale, dense, parallel):
        mask = self.mask_of(layer)
        if mask.keeps_everything:
            return dense()  # the kernel that is fastest at it, and its bits
        context = getattr(parallel, "context_parallel_config", None)
        if context is not None and context._ulysses_mesh.size() > 1:
            if context.ring_degree > 1:
                raise BadInput("xstage has no ring attention: use ContextParallelConfig(ulysses_degree=...) alone")
            group = context._ulysses_mesh.get_group()
            rows, kv_rows = adapter._lengths(group, query.shape[1], key.shape[1], context.ulysses_anything)
            order, back, mask = self._balanced(mask, context._ulysses_mesh.size(), query.device)
            parts = (query, key, value) if order is None else (x.index_select(2, order) for x in (query, key, value))
            out = functional.ulysses_attention(
                *parts, group=group, scale=scale, seq_lens=rows, kv_seq_lens=kv_rows, attention=mask
            )
            out = out if order is None else out.index_select(2, back)
        else:
            out = block_sparse_attention(*(_aligned(x) for x in (query, key, value)), mask, scale=scale)
        if self.measure:
            whole = dense().float()
            error = ((out.float() - whole).norm() / whole.norm()).item()
            self.errors[self.step][layer] = max(self.errors[self.step][layer], error)
        return out


    def _balanced(self, mask, ranks: int, device):
        """The order of the heads over the ranks, its inverse and the mask in that order; None where nothing is won."""
        found = self._orders.get(mask)
        if found is None:
            found = (None, None, mask)
            if mask.heads % ranks == 0:
                order, before, after = mask.balance(ranks)
                # Four copies of a rank's rows are some hundredths of its attention.
                if before > after + 0.03:
                    there = torch.tensor(order, device=device)
                    found = (there, torch.argsort(there), mask.with_heads(order))
            self._orders[mask] = found
        return found


def _aligned(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def calibrate(model, *, steps: int, passes: int = 1) -> Calibration:
    """A context manager; within it every generation of `steps` steps is a prompt. `maps` holds what was found."""
    return Calibration(model, steps, passes)


def run(model, maps: sparse.Maps, *, steps: int | None = None, passes: int = 1, density: float | None = None,
        measure: bool = False) -> SparseRun:  # fmt: skip
    """A context manager; within it self-attention computes what the budgets of `maps` keep.

    steps: of a generation (default: the calibration's). density: one for all heads, layers and steps, instead of
    budgets. measure: dense attention as well, for `errors`; it waits for the GPU.
    """
    return SparseRun(model, maps, maps.steps if steps is None else steps, passes, density, measure)
