#!/bin/sh
# ISA translation units may define nothing weak outside their own namespace: the linker would keep one copy for all ISAs,
# and code compiled for AVX-512 could run on a CPU without it. Usage: odr_guard.sh BUILD_DIRECTORY
set -eu
status=0
objects=$(find "$1" -path '*.dir/kernels/*/*.o')
if [ -z "$objects" ]; then
  echo "no ISA objects in $1" >&2
  exit 1
fi
for object in $objects; do
  isa=$(basename "$(dirname "$object")")
  if nm -C "$object" | grep -E ' [WVu] ' | grep -vE " [WVu] octavo::$isa::"; then
    echo "weak symbols outside octavo::$isa in $object" >&2
    status=1
  fi
done
exit $status
