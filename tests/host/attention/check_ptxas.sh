#!/usr/bin/env bash
# Reads what ptxas reported for each CUDA object (OBJECT.log, kept by cmake/compile_and_log.sh):
# no local memory, and no note that matrix products were serialised (C7510 and its kin C7500-C7599).
set -euo pipefail
kernels=0
bad=0
for object in "$@"; do
    case $object in *.cu.o) ;; *) continue ;; esac
    if [ ! -f "$object.log" ]; then
        echo "no report for $object: was it compiled through cmake/compile_and_log.sh?"
        exit 1
    fi
    kernels=$((kernels + $(grep -c 'Used [0-9]* registers' "$object.log" || true)))
    if grep -E 'C75[0-9][0-9]|serialized' "$object.log"; then bad=1; fi
    if grep -E 'bytes stack frame' "$object.log" | grep -v '0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads'; then
        bad=1
    fi
done
echo "$kernels kernels"
[ "$kernels" -gt 0 ] || { echo "no kernel in the reports"; exit 1; }
exit $bad
