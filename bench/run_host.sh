#!/usr/bin/env bash
# Runs every host benchmark of a build and records each under bench/results/host/ with where it comes from.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: bench/run_host.sh BUILD_DIRECTORY}
mkdir -p bench/results/host
commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
for program in "$build"/bench/bench_*; do
    name=$(basename "$program")
    # Random interleaving spreads a slow spell of the machine over all repetitions alike.
    "$program" --benchmark_repetitions=5 --benchmark_enable_random_interleaving=true \
        --benchmark_report_aggregates_only=true --benchmark_context=commit="$commit",cpu="${cpu//,/;}",argv="$name" \
        --benchmark_out="bench/results/host/$name.json.part" --benchmark_out_format=json
    mv "bench/results/host/$name.json.part" "bench/results/host/$name.json"
done
