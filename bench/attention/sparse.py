#!/usr/bin/env python3
"""Times block-sparse attention against the dense kernel on one GPU and writes one JSON document.

Masks of one bit per 128 x 128 block: all ones, and random, banded and diagonal ones (a band plus every
n-th diagonal, as frames of a video give) at several densities. The ideal is the dense time times the
density that the mask really has, in pairs of rows and keys. Graph replays timed by events, contenders in a
new random order in each repetition. `dense` is the fastest dense kernel and the one with the tile of the
masked kernel.

    sparse.py --library build/cuda/bench/libxstage_attention_c.so --out bench/results/NODE/sparse.json
"""

import argparse
import os
import random
import statistics
import sys
import time

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from compare import captured, cudnn, interval, new_document, write_document  # noqa: E402
from kernel import Library, flops  # noqa: E402

BLOCK = 128
SHAPES = [(32768, 12), (32768, 40), (75600, 12), (75600, 40)]
DENSITIES = (0.75, 0.5, 0.25, 0.1)
PATTERNS = ("random", "banded", "diagonal")


def make_mask(pattern, density, heads, blocks):
    """bool [1][heads][blocks][blocks]; random masks differ among heads, the others are one for all."""
    u = torch.arange(blocks)[:, None]
    v = torch.arange(blocks)[None]
    if pattern == "ones":
        return torch.ones(1, 1, blocks, blocks, dtype=torch.bool)
    if pattern == "random":
        return torch.rand(1, heads, blocks, blocks) < density
    distance = (u - v).abs()
    if pattern == "diagonal":  # bands around every n-th diagonal, n blocks to a frame
        frame = max(2, blocks // 16)
        distance = torch.minimum(distance % frame, frame - distance % frame) * 4096 + distance
    cut = torch.quantile(distance.flatten().float()[:: max(1, blocks * blocks // 10**6)], density)
    return (distance <= cut)[None, None]


def density_of(mask, rows):
    """Share of the pairs of rows and keys; the last block may be short."""
    sizes = torch.full((mask.shape[-1],), float(BLOCK), dtype=torch.float64)
    sizes[-1] = rows - BLOCK * (mask.shape[-1] - 1)
    return ((mask.double() @ sizes) @ sizes / rows**2).mean().item()


def measure(library, rows, heads, a, instances):
    work = flops(1, heads, rows, rows, 128)
    q, k, v = (torch.randn(1, rows, heads, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    out = torch.empty_like(q)
    blocks = (rows + BLOCK - 1) // BLOCK
    low = next(name for name in instances if name).replace("blocks_", "")
    calls = {("dense", 1.0, None): library.plan(q, k, v, out), ("dense", 1.0, low): library.plan(q, k, v, out, instance=low),
             ("cudnn", 1.0, None): lambda: cudnn(q, k, v, False)}
    density, planning = {}, {}
    for pattern in ("ones", *a.patterns):
        for wanted in (1.0,) if pattern == "ones" else a.densities:
            mask = make_mask(pattern, wanted, heads, blocks)
            # The planner gives a mask without a hole to the dense kernel.
            for name in (*instances, None) if pattern == "ones" else instances:
                key = (pattern, wanted, name)
                start = time.perf_counter()
                calls[key] = library.plan(q, k, v, out, mask=mask, instance=name)
                planning[key] = (time.perf_counter() - start) * 1e9
                density[key] = density_of(mask, rows)
    expected = {key: work * density.get(key, 1.0) / 6e14 for key in calls}  # seconds
    counts = {key: max(1, round(1e-2 / seconds)) for key, seconds in expected.items()}
    graphs = {key: captured([call], counts[key]) for key, call in calls.items()}
    times = {key: [] for key in graphs}
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for repetition in range(a.repetitions):
        for key in random.sample(list(graphs), len(graphs)):
            # At its power limit the card takes a while to find the clock of what runs now.
            if expected[key] < 0.04:
                graphs[key].replay()
            start.record()
            graphs[key].replay()
            stop.record()
            stop.synchronize()
            times[key].append(start.elapsed_time(stop) * 1e6 / counts[key])
    dense = times["dense", 1.0, None]
    entries = []
    for key, ns in times.items():
        pattern, wanted, name = key
        entry = {"pattern": pattern, "density": density.get(key, 1.0), "median_ns": statistics.median(ns), "ns": ns}
        entry["instance"] = None if pattern == "cudnn" else calls[key].instance
        entry["over_dense"] = dict(zip(("median", "low", "high"), interval([x / d for x, d in zip(ns, dense)])))
        if key in density:
            entry["wanted_density"] = wanted
            entry["plan_ns"] = planning[key]
            entry["of_ideal"] = dict(zip(("median", "low", "high"),
                                         interval([d * density[key] / x for x, d in zip(ns, dense)])))
        entries.append(entry)
        ideal = entry.get("of_ideal", {}).get("median")
        print("%6d x %2d %-8s %.3f %10.1f us  %.3f of dense  %s of ideal  %s" % (
            rows, heads, pattern, entry["density"], entry["median_ns"] / 1e3, entry["over_dense"]["median"],
            "     " if ideal is None else "%.3f" % ideal, entry["instance"]), file=sys.stderr, flush=True)
    return {"rows": rows, "heads": heads, "head_dim": 128, "flops": work, "contenders": entries}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--out", default="-")
    parser.add_argument("--commit", default=None, help="git commit of the library")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--instances", default="bf16_d128_blocks_128x128", help="comma-separated")
    parser.add_argument("--shapes", help="rowsxheads,...; default: the table of the documentation")
    parser.add_argument("--patterns", type=lambda s: s.split(","), default=PATTERNS)
    parser.add_argument("--densities", type=lambda s: [float(x) for x in s.split(",")], default=DENSITIES)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no further shape after this")
    a = parser.parse_args()
    shapes = [tuple(map(int, s.split("x"))) for s in a.shapes.split(",")] if a.shapes else SHAPES
    torch.manual_seed(1)
    library = Library(a.library)
    started = time.time()
    document = new_document("sparse_attention_bench", a, dtype="bfloat16")
    for rows, heads in shapes:
        if time.time() - started > a.seconds:
            print("out of time before", rows, heads, file=sys.stderr)
            break
        document["rows"].append(measure(library, rows, heads, a, a.instances.split(",")))
        torch.cuda.empty_cache()
    write_document(document, a.out)


if __name__ == "__main__":
    main()
