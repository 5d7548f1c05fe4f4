#!/bin/sh
# Fails if a hot loop of the AVX-512 matrix kernels keeps a vector on the stack: g++ 12 does that to accumulators it meets
# as an array in a loop, and the kernel then runs at a quarter of its speed.
# Usage: check_spills.sh BUILD_DIRECTORY (of an optimised build)
set -eu
objects=$(find "$1" -path '*.dir/kernels/avx512*/linear.cpp.o')
if [ -z "$objects" ]; then
  echo "no AVX-512 matrix kernels in $1" >&2
  exit 1
fi
for object in $objects; do
  objdump -dC --no-show-raw-insn "$object" | awk -v object="$object" '
    /^[0-9a-f]+ </ { name = $0; hot = /multiply_tile|multiply_float_tile|add_pair/; tiles += hot }
    hot && /zmm/ && /\(%r[sb]p/ { print name; print; spills++ }
    END {
      if (!tiles) { print "no tile kernels found in " object; exit 1 }
      printf "%s: %d tile kernels, %d spills\n", object, tiles, spills
      exit spills > 0
    }'
done
