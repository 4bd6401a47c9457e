#!/usr/bin/env python3
"""Times the attention kernel against cuDNN, and FlashAttention-3 where the package fa3-fwd is installed, on one GPU
and writes one JSON document.

Graph replays timed by events; in every repetition the contenders run in a new random order, so that
drifts of clock and temperature hit all alike. Inputs are random and rotate among several sets, so
that the cache holds no more of them than in use. Needs torch and the library xstage_attention_c.

    compare.py --library build/cuda/bench/libxstage_attention_c.so --out bench/results/NODE/attention.json
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kernel import Library, flops  # noqa: E402

PEAK_TFLOPS = 989.0  # dense 16-bit, NVIDIA's data sheet for H100 and H200 SXM
# rows, heads, head_dim, causal
SHAPES = [(s, h, 128, False) for s in (1024, 2048, 4096, 8192, 16384, 32768, 73728) for h in (6, 12, 24)]
SHAPES += [(s, h, 64, False) for s, h in ((1024, 24), (2048, 24), (4096, 24), (4429, 38), (17776, 12), (32768, 12))]
SHAPES += [(4429, 24, 128, False), (7145, 24, 128, False)]
SHAPES += [(s, h, d, True) for s, h, d in ((4096, 16, 128), (8192, 16, 128), (16384, 16, 128), (8192, 16, 64))]


def cudnn(q, k, v, causal):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal)


def fa3():
    """FlashAttention-3's forward as f(q, k, v, out, causal), or None."""
    try:
        import fa3_fwd._C  # noqa: F401  registers torch.ops.fa3_fwd
    except ImportError:
        return None

    def call(q, k, v, out, causal):
        torch.ops.fa3_fwd.fwd(q, k, v, None, None, None, out, *[None] * 16, q.shape[-1] ** -0.5, causal, -1, -1, 0, 0.0,
                              True, None, 1, None, 0)

    return call


def captured(calls, count):
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(count):
            calls[i % len(calls)]()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def interval(ratios, draws=2000):
    """Median and its 95% bootstrap interval."""
    medians = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(draws))
    return statistics.median(ratios), medians[draws // 40], medians[-draws // 40]


def measure(library, shape, instances, repetitions, dtype, peers, flash):
    rows, heads, dim, causal = shape
    work = flops(1, heads, rows, rows, dim, causal)
    bytes_per_set = 3 * rows * heads * dim * 2
    sets = max(1, min(8, math.ceil(3e8 / bytes_per_set)))
    inputs = [[torch.randn(1, rows, heads, dim, device="cuda", dtype=dtype) for _ in range(3)]
              for _ in range(sets)]
    out = torch.empty(1, rows, heads, dim, device="cuda", dtype=dtype)
    count = max(sets, math.ceil(3e-3 * 6e14 / work))

    contenders, chosen = {}, {}
    for name in instances:
        plans = [library.plan(*x, out, causal=causal, instance=None if name == "xstage" else name)
                 for x in inputs]
        contenders[name], chosen[name] = plans, plans[0].instance
    contenders["xstage_rescaling_late"] = [library.plan(*x, out, causal=causal, rescale_above=8.0) for x in inputs]
    if peers > 1:  # chunks of one tensor: the epilogue of a store to peers, without a link
        cuts = [rows * i // peers + (7 if 0 < i < peers else 0) for i in range(peers + 1)]
        chunks = [out[:, cuts[i]:cuts[i + 1]] for i in range(peers)]
        contenders["xstage_peers"] = [library.plan(*x, chunks, causal=causal,
                                                   order="head_major" if causal else "rotated")
                                      for x in inputs]
    contenders["cudnn"] = [lambda x=x: cudnn(*x, causal) for x in inputs]
    if flash is not None:
        contenders["fa3"] = [lambda x=x: flash(*x, out, causal) for x in inputs]
    graphs = {name: captured(calls, count) for name, calls in contenders.items()}

    times = {name: [] for name in graphs}
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for repetition in range(repetitions + 1):
        for name in random.sample(list(graphs), len(graphs)):
            start.record()
            graphs[name].replay()
            stop.record()
            stop.synchronize()
            if repetition:  # the first is a warm-up
                times[name].append(start.elapsed_time(stop) * 1e6 / count)
    row = {"rows": rows, "heads": heads, "head_dim": dim, "causal": causal, "flops": work, "contenders": {}}
    for name, ns in times.items():
        median = statistics.median(ns)
        entry = {"instance": chosen.get(name), "median_ns": median, "ns": ns,
                 "tflops": work / median / 1e3, "fraction_of_peak": work / median / 1e3 / PEAK_TFLOPS}
        for other in ("cudnn", "fa3"):
            if name != other and other in times:
                ratio, low, high = interval([c / x for c, x in zip(times[other], ns)])
                entry["speedup_over_" + other] = {"median": ratio, "low": low, "high": high}
        row["contenders"][name] = entry
        tail = "".join("  %.3f [%.3f, %.3f] x %s" % (*entry["speedup_over_" + other].values(), other)
                       for other in ("cudnn", "fa3") if "speedup_over_" + other in entry)
        print("%6d x %2d x %3d %s %-32s %10.1f us %6.1f TFLOP/s %.3f of peak%s  %s" % (
            rows, heads, dim, "causal" if causal else "dense ", name, median / 1e3, entry["tflops"],
            entry["fraction_of_peak"], tail, chosen.get(name, "")), file=sys.stderr, flush=True)
    return row


def query(fields):
    command = ["nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader", "-i", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [x.strip() for x in done.stdout.strip().split(",")] if done.returncode == 0 else None


FIELDS = "driver_version,power.limit,clocks.sm,power.draw,temperature.gpu"


def new_document(kind, a, **more):
    """Where a bench document comes from; `a` are the arguments, with `commit`."""
    return {
        "schema_version": 1, "kind": kind, "argv": sys.argv, "commit": a.commit, **more,
        "started_unix_s": int(time.time()), "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(), "cuda": torch.version.cuda,
        "nvidia_smi": {"fields": FIELDS, "before": query(FIELDS)}, "rows": [],
    }


def write_document(document, path):
    document["nvidia_smi"]["after"] = query(FIELDS)
    text = json.dumps(document, indent=1)
    if path == "-":
        print(text)
        return
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--out", default="-")
    parser.add_argument("--commit", default=None, help="git commit of the library")
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--peers", type=int, default=0)
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--instances", help="comma-separated; default: the planner's choice")
    parser.add_argument("--shapes", help="rowsxheadsxdim[c],...; default: the table of the documentation")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no further shape after this")
    a = parser.parse_args()
    shapes = SHAPES
    if a.shapes:
        shapes = [(*map(int, s.rstrip("c").split("x")), s.endswith("c")) for s in a.shapes.split(",")]
    library = Library(a.library)
    started = time.time()
    flash = fa3() if a.dtype == "bfloat16" else None  # the wheel has no fp16
    document = new_document("attention_bench", a, dtype=a.dtype, peak_tflops=PEAK_TFLOPS)
    for shape in shapes:
        if time.time() - started > a.seconds:
            print("out of time before", shape, file=sys.stderr)
            break
        names = a.instances.split(",") if a.instances else ["xstage"]
        document["rows"].append(
            measure(library, shape, names, a.repetitions, getattr(torch, a.dtype), a.peers, flash))
        torch.cuda.empty_cache()
    write_document(document, a.out)


if __name__ == "__main__":
    main()
