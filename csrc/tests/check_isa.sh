#!/bin/sh
# Fails if objects of a kernel table hold instructions its CPUs need not have: VNNI in avx512, 512-bit vectors in avx2,
# 256-bit ones in scalar. Usage: check_isa.sh BUILD_DIRECTORY
set -eu
status=0
check() {  # table, directory, pattern
  objects=$(find "$2" -path "*.dir/kernels/$1/*.o")
  if [ -z "$objects" ]; then
    echo "no objects of table $1 in $2" >&2
    status=1
  fi
  for object in $objects; do
    if objdump -d --no-show-raw-insn "$object" | grep -m 3 -E "$3"; then
      echo "not for table $1: $object" >&2
      status=1
    fi
  done
}
check avx512 "$1" 'vpdp(bu|ws)sd'
check avx2 "$1" '%zmm|%k[1-7]'
check scalar "$1" '%ymm|%zmm'
exit $status
