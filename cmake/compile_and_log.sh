#!/usr/bin/env bash
# Compiler launcher: runs the compiler and keeps what it says beside the object (OBJECT.log), so that
# a test can read the assembler's report of registers and spills.
set -uo pipefail
object=
previous=
for argument in "$@"; do
    [ "$previous" = -o ] && object=$argument
    previous=$argument
done
if [ -z "$object" ]; then exec "$@"; fi
"$@" 2> >(tee "$object.log" >&2)
status=$?
wait
exit $status
