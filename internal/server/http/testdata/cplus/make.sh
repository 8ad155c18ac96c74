#!/usr/bin/env bash
# Builds the guest without and with optimization, and packs it: make.sh FOLDER. Needs g++ and binutils.
set -euo pipefail
src=$(cd "$(dirname "$0")" && pwd)
to=$(realpath "${1:?usage: make.sh FOLDER}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
flags=(-g -gdwarf-5 -ffreestanding -fno-pie -mcmodel=kernel -mno-red-zone -mgeneral-regs-only -fcf-protection=none -fno-stack-protector
	-fno-exceptions -fno-rtti -fno-threadsafe-statics -fdebug-prefix-map="$src=/src" -fdebug-prefix-map="$work=/build")
gcc -c "$src/entry.S" -o entry.o
for level in 0 2; do
	g++ "${flags[@]}" -O$level -I"$src" -c "$src/guest.cc" -o guest.o
	ld -static -no-pie -nostdlib --build-id=sha1 -z max-page-size=4096 -z noexecstack -T "$src/guest.lds" -o guest entry.o guest.o
	gzip -n9 <guest >"$to/O$level.gz"
done
