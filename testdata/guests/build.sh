#!/bin/sh
# Builds the guests of the script tests. Needs gcc and ld; the tests do not.
set -eu
cd "$(dirname "$0")"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
gcc -c entry.S -o "$tmp/entry.o"
for f in *.c; do
	gcc -O2 -ffreestanding -fno-pie -mcmodel=kernel -mno-red-zone -mgeneral-regs-only -fcf-protection=none -fno-stack-protector \
		-fno-asynchronous-unwind-tables -c "$f" -o "$tmp/guest.o"
	ld -static -no-pie -nostdlib --build-id=none -z max-page-size=4096 -z noexecstack -T guest.lds -o "${f%.c}.elf" "$tmp/entry.o" "$tmp/guest.o"
	strip --strip-debug "${f%.c}.elf"
	chmod 644 "${f%.c}.elf"
done
# The guest of other VMMs; its program is called from nothing of C.
gcc -c multiboot.S -o "$tmp/multiboot.o"
ld -static -no-pie -nostdlib --build-id=none -z max-page-size=4096 -z noexecstack --no-warn-rwx-segments -T multiboot.lds -o multiboot.elf "$tmp/multiboot.o"
chmod 644 multiboot.elf
sha256sum build.sh ./*.c ./*.h ./*.S ./*.lds ./*.elf >guests.sum
