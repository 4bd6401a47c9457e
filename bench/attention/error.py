#!/usr/bin/env python3
"""Errors of the attention kernel, of cuDNN and of FlashAttention-3 (where fa3-fwd is installed) against float64.

    error.py --library build/cuda/bench/libxstage_attention_c.so --out bench/results/NODE/attention_error.json

Inputs: standard normal; normal of standard deviation 40 (softmax picks single keys); constant; queries and keys that
are one-hot. An error is the L2 norm of the difference over the L2 norm of the reference, and the largest element.
"""

import argparse
import os
import sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from compare import cudnn, fa3, new_document, write_document  # noqa: E402
from kernel import Library  # noqa: E402

SHAPES = [(1024, 64), (1024, 128), (4096, 64), (4096, 128), (16384, 128)]
HEADS = 2


def inputs(kind, rows, dim, dtype):
    shape = (1, rows, HEADS, dim)
    if kind == "normal":
        return [torch.randn(shape, device="cuda").to(dtype) for _ in range(3)]
    if kind == "large":
        return [(40 * torch.randn(shape, device="cuda")).to(dtype) for _ in range(3)]
    if kind == "constant":
        return [torch.full(shape, value, device="cuda", dtype=dtype) for value in (0.5, 0.25, 0.7)]
    hot = torch.zeros(shape, device="cuda", dtype=dtype)
    hot.scatter_(3, torch.arange(rows, device="cuda").remainder(dim).view(1, rows, 1, 1).expand(1, rows, HEADS, 1), 16.0)
    return [hot, hot.flip(1).contiguous(), torch.randn(shape, device="cuda").to(dtype)]


def reference(q, k, v):
    """float64, 1024 query rows at a time."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    parts = [torch.softmax(part @ k.transpose(2, 3) * q.shape[-1] ** -0.5, -1) @ v for part in q.split(1024, 2)]
    return torch.cat(parts, 2).transpose(1, 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--out", default="-")
    parser.add_argument("--commit", default=None, help="git commit of the library")
    a = parser.parse_args()
    torch.manual_seed(2)
    library = Library(a.library)
    flash = fa3()
    document = new_document("attention_error", a, heads=HEADS)
    for dtype in (torch.bfloat16, torch.float16):
        for rows, dim in SHAPES:
            for kind in ("normal", "large", "constant", "one-hot"):
                q, k, v = inputs(kind, rows, dim, dtype)
                exact = reference(q, k, v)
                results = {"cudnn": cudnn(q, k, v, False).transpose(1, 2)}
                for name, above in (("xstage", 0.0), ("xstage_rescaling_late", 8.0)):
                    results[name] = torch.empty_like(q)
                    library.plan(q, k, v, results[name], rescale_above=above)()
                if flash is not None and dtype == torch.bfloat16:  # the wheel has no fp16
                    results["fa3"] = torch.empty_like(q)
                    flash(q, k, v, results["fa3"], False)
                torch.cuda.synchronize()
                row = {"dtype": str(dtype).split(".")[1], "rows": rows, "head_dim": dim, "inputs": kind, "errors": {}}
                for name, result in results.items():
                    off = result.double() - exact
                    row["errors"][name] = {"relative_l2": (off.norm() / exact.norm()).item(), "largest": off.abs().max().item()}
                document["rows"].append(row)
                print(row["dtype"], rows, dim, kind, " ".join(
                    "%s %.5e %.3e" % (n, *e.values()) for n, e in row["errors"].items()), file=sys.stderr)
    write_document(document, a.out)


if __name__ == "__main__":
    main()
