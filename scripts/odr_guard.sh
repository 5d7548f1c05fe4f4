#!/bin/sh
# ISA translation units may define nothing weak outside namespace octavo: the linker would keep one copy for all ISAs,
# and code compiled for AVX-512 could run on a CPU without it.
set -eu
found=0
for object in $(find "$1" -path '*octavo_avx512_vnni.dir*' -name '*.o'); do
  if nm -C "$object" | grep -E ' [WVu] ' | grep -vE ' [WVu] octavo::avx512_vnni::'; then
    echo "weak symbols outside the ISA namespace in $object" >&2
    found=1
  fi
done
exit $found
