#!/usr/bin/env python3
"""The same bf16 layer from separate kernels: gather, torch's grouped GEMMs, SwiGLU, scatter, sum.

Times the whole and its two grouped GEMMs alone, by events, and writes a JSON document.
"""
import argparse
import json
import sys

import torch

SHAPES = {
    "V3": (7168, 2048, 256, 8),
    "V4-Flash": (4096, 2048, 256, 6),
    "LingBot-Video": (2048, 768, 128, 8),
}


def median_us(work, repetitions, flush):
    times = []
    for i in range(repetitions + 2):
        flush.fill_(i)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        if i >= 2:
            times.append(begin.elapsed_time(end) * 1e3)
    return sorted(times)[len(times) // 2]


def measure(name, slice_, tokens, repetitions, flush):
    h, i, experts, k = SHAPES[name]
    experts //= slice_
    rand = lambda *s: torch.empty(s, device="cuda", dtype=torch.bfloat16).uniform_(-0.03, 0.03)
    x, w1, w2 = rand(tokens, h), rand(experts, 2 * i, h), rand(experts, h, i)
    torch.manual_seed(1)
    index = torch.rand(tokens, experts, device="cuda").topk(k).indices
    weight = torch.rand(tokens * k, 1, device="cuda")

    def route():
        flat = index.flatten()
        order = flat.argsort(stable=True)
        ends = flat.bincount(minlength=experts).cumsum(0).int()
        return order, ends

    order, ends = route()
    rows = x[order // k]
    act = rand(tokens * k, i)

    def gemms():
        torch._grouped_mm(rows, w1.transpose(1, 2), offs=ends)
        torch._grouped_mm(act, w2.transpose(1, 2), offs=ends)

    def layer():
        order, ends = route()
        both = torch._grouped_mm(x[order // k], w1.transpose(1, 2), offs=ends)
        a = torch.nn.functional.silu(both[:, :i].float()) * both[:, i:] * weight[order]
        out = torch._grouped_mm(a.bfloat16(), w2.transpose(1, 2), offs=ends)
        slots = torch.empty_like(out)
        slots[order] = out
        return slots.view(tokens, k, h).float().sum(1).bfloat16()

    flop = 6 * h * i * tokens * k
    row = {"shape": name, "type": "bf16", "local_experts": experts, "tokens": tokens, "top_k": k}
    for what, work in (("layer", layer), ("grouped_gemms", gemms)):
        us = median_us(work, repetitions, flush)
        row[what] = {"us": us, "tflops": flop / us * 1e-6}
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    rows = [measure(name, slice_, options.tokens, options.repetitions, flush)
            for name in SHAPES for slice_ in (8, 1)]
    document = {"schema_version": 1, "kind": "bench-moe-grouped", "argv": sys.argv,
                "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
