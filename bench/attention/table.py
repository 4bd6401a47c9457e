#!/usr/bin/env python3
"""Prints the documents of compare.py as one Markdown page. table.py DOCUMENT.json... > attention.md"""

import json
import math
import sys


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def ratio(contender):
    return contender["speedup_over_cudnn"]


def page(path):
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    driver, limit = document["nvidia_smi"]["before"][:2]
    print(f"## {document['dtype']}\n")
    print(f"{document['gpu']}, driver {driver}, power limit {limit}, CUDA {document['cuda']}, torch {document['torch']}, "
          f"cuDNN {document['cudnn']}; kernel of commit {document['commit']}. Peak: {document['peak_tflops']:.0f} TFLOP/s.\n")
    print("| rows | heads | D | mask | instance | us | TFLOP/s | of peak | cuDNN TFLOP/s | over cuDNN [95%] | over FA-3 | rescaling late | 4 chunks / 1 |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for row in document["rows"]:
        own, cudnn = row["contenders"]["xstage"], row["contenders"]["cudnn"]
        r = ratio(own)
        flash, late, peers = own.get("speedup_over_fa3"), *map(row["contenders"].get, ("xstage_rescaling_late", "xstage_peers"))
        cells = [row["rows"], row["heads"], row["head_dim"], "causal" if row["causal"] else "dense", own["instance"],
                 f"{own['median_ns'] / 1e3:.1f}", f"{own['tflops']:.0f}", f"{own['fraction_of_peak']:.3f}", f"{cudnn['tflops']:.0f}",
                 f"{r['median']:.3f} [{r['low']:.3f}, {r['high']:.3f}]", f"{flash['median']:.3f}" if flash else "",
                 f"{late['tflops']:.0f}" if late else "", f"{peers['median_ns'] / own['median_ns']:.3f}" if peers else ""]
        print("| " + " | ".join(map(str, cells)) + " |")
    long = [row for row in document["rows"]
            if row["rows"] >= 4096 and row["head_dim"] == 128 and not row["causal"]]
    everything = [ratio(row["contenders"]["xstage"])["median"] for row in document["rows"]]
    if long:
        print(f"\nGeometric mean over cuDNN, dense D = 128 from 4096 rows ({len(long)} shapes): "
              f"{geomean([ratio(row['contenders']['xstage'])['median'] for row in long]):.3f}; "
              f"all {len(everything)} shapes: {geomean(everything):.3f}.")
        flash = [row["contenders"]["xstage"]["speedup_over_fa3"]["median"] for row in long if "fa3" in row["contenders"]]
        if flash:
            print(f"Over FlashAttention-3 (fa3-fwd 0.0.3), the same {len(flash)} shapes: {geomean(flash):.3f}.")
    below = [row for row in document["rows"] if ratio(row["contenders"]["xstage"])["high"] < 1]
    print("\nBelow cuDNN: " + (", ".join(f"{r['rows']} x {r['heads']} x {r['head_dim']}" for r in below) or "none") + ".\n")


def main():
    print("# Attention forward on one GPU\n")
    print("Written by bench/attention/table.py from the JSON documents beside it. Median of event-timed graph replays,")
    print("contenders in a new random order in each repetition. Causal flops count the unmasked half. `rescaling late` is the")
    print("same kernel with rescale_above = 8, TFLOP/s. The last column is the time with the output in four chunks, as for")
    print("peers (no link crossed), over the time with one.\n")
    for path in sys.argv[1:]:
        page(path)


if __name__ == "__main__":
    main()
