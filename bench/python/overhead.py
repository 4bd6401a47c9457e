#!/usr/bin/env python3
"""Host time that xstage adds to a call of an attention kernel, and the time of the import.

    overhead.py --out python.json [--commit COMMIT]

Virtual ranks of one GPU: one call does the work of all of them, so its excess over their kernel calls is divided
by their number. Nothing waits for the GPU inside a timed call; between blocks the stream is drained. Blocks of
the candidates come in random order. Beside the calls: their C part alone (_in_c), with a kernel that does nothing
(_no_kernel), and a barrier, which is one launch.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time


def import_seconds(repeats=20):
    code = "import time; t = time.perf_counter(); import xstage; print(time.perf_counter() - t)"
    once = lambda: subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: E731
    return [float(once().stdout) for _ in range(repeats)]


def spread(values):
    values = sorted(values)
    pick = lambda f: values[min(len(values) - 1, int(f * len(values)))]  # noqa: E731
    return {"median": statistics.median(values), "p10": pick(0.1), "p90": pick(0.9), "n": len(values)}


def host_times(calls, blocks=40, inner=10):
    """Microseconds per call of each candidate, one value per call."""
    import torch

    found = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(5):
            call()
    torch.cuda.synchronize()
    order = list(calls) * blocks
    random.Random(0).shuffle(order)
    for name in order:
        call = calls[name]
        for _ in range(inner):
            start = time.perf_counter_ns()
            call()
            found[name].append((time.perf_counter_ns() - start) / 1000)
        torch.cuda.synchronize()
    return found


def gpu_rows(world, rows, heads, dim):
    import torch
    import torch.nn.functional as F
    import xstage

    torch.manual_seed(0)
    group = xstage.Group.local(world)
    make = lambda *shape: torch.randn(shape, device="cuda", dtype=torch.bfloat16)  # noqa: E731
    parts = [[make(1, rows, heads, dim) for _ in range(world)] for _ in range(3)]
    gathered = [[make(1, rows * world, heads // world, dim) for _ in range(world)] for _ in range(3)]
    whole = xstage.Ulysses(group, rows=rows, heads=heads, head_dim=dim)
    half = xstage.Ulysses(group, rows=rows, heads=heads, head_dim=dim, gathered_only=True)
    nothing = xstage.Ulysses(group, rows=rows, heads=heads, head_dim=dim, attention=lambda q, k, v, *, out, scale: None)
    nothing_half = xstage.Ulysses(
        group, rows=rows, heads=heads, head_dim=dim, gathered_only=True, attention=lambda q, k, v, *, out, scale: None
    )

    def in_c(context):
        """The C call alone, on the inputs of the call before."""
        from xstage import _abi

        pointer, n = context._inputs[id(context._sharded)]

        def call():
            streams, count = group.streams()
            _abi.check(_abi.lib.xstage_ulysses_attend(context._handle, pointer, n, streams, count, context._results))

        return call

    by_heads = [[x.transpose(1, 2) for x in g] for g in gathered]

    def direct():
        for r in range(world):
            F.scaled_dot_product_attention(by_heads[0][r], by_heads[1][r], by_heads[2][r])

    whole.attend(*parts), nothing.attend(*parts)
    with torch.no_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
        times = host_times({
            "direct": direct,
            "attend": lambda: whole.attend(*parts),
            "attend_and_scatter": lambda: half.attend_and_scatter(*gathered),
            "attend_no_kernel": lambda: nothing.attend(*parts),
            "attend_and_scatter_no_kernel": lambda: nothing_half.attend_and_scatter(*gathered),
            "attend_in_c": in_c(whole),
            "attend_in_c_no_kernel": in_c(nothing),
            "barrier": group.barrier,
        })  # fmt: skip
    per_rank = {name: spread([t / world for t in values]) for name, values in times.items()}
    base = per_rank["direct"]["median"]
    row = {
        "ranks": world, "rows_per_rank": rows, "heads": heads, "head_dim": dim, "plan": whole.plan,
        "host_us_per_rank": per_rank,
        "overhead_us": {n: per_rank[n]["median"] - base for n in ("attend", "attend_and_scatter")},
    }  # fmt: skip
    group.close()
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--commit", default=None)
    args = parser.parse_args()
    document = {
        "kind": "python_overhead",
        "schema_version": 1,
        "provenance": {
            "commit": args.commit, "argv": sys.argv, "python": platform.python_version(), "cpus": os.cpu_count(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        },
        "import_s": spread(import_seconds()),
    }  # fmt: skip
    try:
        import torch

        if torch.cuda.is_available():
            document["provenance"] |= {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
            document["rows"] = [gpu_rows(w, s, 24, 128) for w in (2, 4) for s in (256, 1024)]
        else:
            document["rows_missing"] = "no CUDA device"
    except ImportError as error:
        document["rows_missing"] = str(error)
    with open(args.out, "w") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
    for row in document.get("rows", []):
        print(row["ranks"], row["rows_per_rank"], {k: round(v, 1) for k, v in row["overhead_us"].items()},
              {k: round(v["median"], 1) for k, v in row["host_us_per_rank"].items()})  # fmt: skip
    print("import", round(document["import_s"]["median"], 4), "s")


if __name__ == "__main__":
    main()
