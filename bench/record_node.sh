#!/usr/bin/env bash
# Records what a node with N GPUs can show, largest value first, in at most 9 minutes.
#
#   bench/record_node.sh stage BUILD BUNDLE     strip a build's programs into a folder that can travel
#   bench/record_node.sh run BUNDLE OUT [NODE]  on the node: one document or log a step, under OUT
#
# A step whose output is there is left out, so a run that was cut short goes on where it stopped.
# BUDGET (seconds, 540) bounds the whole; a step starts only if its own limit still fits.
set -uo pipefail

stage() {
    local build=$1 bundle=$2 program
    mkdir -p "$bundle/lib"
    for program in xstage bench/fabric_bench bench/bench_stamp_overhead tests/gpu/fabric/test_gpu_fabric_{local,process} \
        tests/gpu/ulysses/test_gpu_ulysses tests/gpu/moe/test_gpu_moe{,_process} tests/gpu/probe/test_gpu_probe; do
        if [ -x "$build/$program" ]; then strip -o "$bundle/$(basename "$program")" "$build/$program"; fi
    done
    # The one library beside the system's own that a bare machine may lack.
    cp -L "$(ldd "$bundle/xstage" | awk '/libfmt/ {print $3}')" "$bundle/lib/"
    cp "$0" "$bundle/record_node.sh"
    git -C "$(dirname "$0")" describe --always --dirty >"$bundle/commit"
}

run() {
    local bundle out node gpus commit budget=${BUDGET:-540} started=$SECONDS failed=0
    bundle=$(cd "$1" && pwd)
    mkdir -p "$2"
    out=$(cd "$2" && pwd)
    gpus=$(nvidia-smi -L | grep -c '^GPU')
    node=${3:-h200x$gpus}
    commit=$(cat "$bundle/commit")
    local nvidia
    nvidia=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null || true)
    LD_LIBRARY_PATH=$bundle/lib:$(printf '%s:' "$nvidia"/*/lib)${LD_LIBRARY_PATH:-}
    export LD_LIBRARY_PATH
    cd "$bundle" || return 2

    # step NAME LIMIT COMMAND...: the command writes $out/NAME.part, which becomes NAME when it ends well.
    step() {
        local name=$1 limit=$2 begun=$SECONDS code
        shift 2
        if [ -e "$out/$name" ]; then echo "$name: there already"; return; fi
        if ! [ -x "$1" ] && ! command -v "$1" >/dev/null; then echo "$name: $1 is not in the bundle"; return; fi
        if ((SECONDS - started + limit > budget)); then echo "$name: no time left (needs up to $limit s)"; return; fi
        timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
        code=$?
        case $name in *.log) mv "$out/$name.log" "$out/$name.part" ;; esac
        if [ $code = 0 ]; then
            mv "$out/$name.part" "$out/$name"
            rm -f "$out/$name.log"
            echo "$name: $((SECONDS - begun)) s"
        else
            failed=1
            echo "$name: exit $code after $((SECONDS - begun)) s"
            tail -n 5 "$out/$name.log" "$out/$name.part" 2>/dev/null | cut -c -200
        fi
    }

    local ranks=$gpus backend=process
    local probe=(./xstage probe --name "$node")
    if ((gpus == 1)); then
        ranks=2 backend=local
        probe+=(--loopback)
    fi
    step env.log 30 ./xstage env
    step fabric_process.log 90 ./test_gpu_fabric_process --gtest_brief=1
    step ulysses_tests.log 60 ./test_gpu_ulysses --gtest_brief=1
    step "ulysses_p$ranks.json" 120 ./xstage bench ulysses --node "$node" --ranks "$ranks" --backend "$backend" --rows-up-to 16384 -o "$out/ulysses_p$ranks.json.part"
    step moe_tests.log 60 ./test_gpu_moe --gtest_brief=1
    step moe_process_tests.log 60 ./test_gpu_moe_process --gtest_brief=1
    # A rank per GPU. Where there is one GPU, one rank: two on it would share its SMs, and no store would leave it.
    step moe.json 150 ./xstage bench moe --node "$node" --ranks "$gpus" --backend process --seconds 130 -o "$out/moe.json.part"
    if ((gpus > 1)); then
        step moe_away.json 120 ./xstage bench moe --node "$node" --ranks "$gpus" --backend process --types fp8 --routing away,home --tokens 2048,8192 --stamps --seconds 100 -o "$out/moe_away.json.part"
    fi
    step fabric.json 60 ./fabric_bench --node "$node" --commit "$commit" --out "$out/fabric.json.part"
    step probe.json 60 "${probe[@]}" -o "$out/probe.json.part"
    step litmus.json 60 "${probe[@]}" --litmus -o "$out/litmus.json.part"
    step fabric_local.log 60 ./test_gpu_fabric_local --gtest_brief=1
    return $failed
}

command=${1:-}
case $command:$# in
stage:3) stage "$2" "$3" ;;
run:3 | run:4) run "${@:2}" ;;
*) sed -n '2,8s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
