#!/bin/bash
# Builds kernel.elf, the kernel of the tortured guests, and kernel.sum, the hash
# of its sources, which a test compares. Needs gcc and binutils.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
gcc -O2 -std=gnu11 -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables -fpie -fvisibility=hidden -mno-red-zone \
	-mgeneral-regs-only -fcf-protection=none -fno-strict-aliasing -fno-tree-loop-distribute-patterns -Wall -Wextra -Werror -c kernel.c -o "$tmp/kernel.o"
gcc -c entry.S -o "$tmp/entry.o"
ld -nostdlib -static -z max-page-size=4096 -z noexecstack --no-warn-rwx-segments --build-id=none -T kernel.lds -o kernel.elf "$tmp"/entry.o "$tmp"/kernel.o
strip --strip-debug kernel.elf
chmod 644 kernel.elf
sha256sum build.sh entry.S kernel.c kernel.h kernel.lds | sha256sum | cut -c1-64 >kernel.sum
