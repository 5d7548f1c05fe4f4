#!/bin/sh
# Fails if a hot loop of the AVX-512 matrix kernels keeps a vector on the stack: g++ 12 does that to accumulators it meets
# as an array in a loop, and the kernel then runs at a quarter of its speed. Usage: check_spills.sh linear.cpp.o
set -eu
objdump -dC --no-show-raw-insn "$1" | awk '
  /^[0-9a-f]+ </ { name = $0; hot = /multiply_tile|multiply_far_token|multiply_float_tile/; tiles += hot }
  hot && /zmm/ && /\(%r[sb]p/ { print name; print; spills++ }
  END {
    if (!tiles) { print "no tile kernels found"; exit 1 }
    printf "%d tile kernels, %d spills\n", tiles, spills
    exit spills > 0
  }'
