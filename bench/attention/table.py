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
    print("| rows | heads | D | mask | instance | us | TFLOP/s | of peak | cuDNN TFLOP/s | over cuDNN [95%] | 4 chunks / 1 |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for row in document["rows"]:
        own, cudnn = row["contenders"]["xstage"], row["contenders"]["cudnn"]
        peers = row["contenders"].get("xstage_peers")
        r = ratio(own)
        chunks = f"{peers['median_ns'] / own['median_ns']:.3f}" if peers else ""
        print(f"| {row['rows']} | {row['heads']} | {row['head_dim']} | {'causal' if row['causal'] else 'dense'} "
              f"| {own['instance']} | {own['median_ns'] / 1e3:.1f} | {own['tflops']:.0f} | {own['fraction_of_peak']:.3f} "
              f"| {cudnn['tflops']:.0f} | {r['median']:.3f} [{r['low']:.3f}, {r['high']:.3f}] | {chunks} |")
    long = [row for row in document["rows"]
            if row["rows"] >= 4096 and row["head_dim"] == 128 and not row["causal"]]
    everything = [ratio(row["contenders"]["xstage"])["median"] for row in document["rows"]]
    if long:
        print(f"\nGeometric mean over cuDNN, dense D = 128 from 4096 rows ({len(long)} shapes): "
              f"{geomean([ratio(row['contenders']['xstage'])['median'] for row in long]):.3f}; "
              f"all {len(everything)} shapes: {geomean(everything):.3f}.")
    below = [row for row in document["rows"] if ratio(row["contenders"]["xstage"])["high"] < 1]
    print("\nBelow cuDNN: " + (", ".join(f"{r['rows']} x {r['heads']} x {r['head_dim']}" for r in below) or "none") + ".\n")


def main():
    print("# Attention forward on one GPU\n")
    print("Written by bench/attention/table.py from the JSON documents beside it. Median of event-timed graph replays,")
    print("contenders in a new random order in each repetition. Causal flops count the unmasked half. The last column is the")
    print("time with the output in four chunks, as for peers (no link crossed), over the time with one.\n")
    for path in sys.argv[1:]:
        page(path)


if __name__ == "__main__":
    main()
