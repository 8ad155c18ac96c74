#!/bin/sh
# Builds the suite's guest. Needs GNU as and ld; nobody else does.
set -eu
cd "$(dirname "$0")"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
as --64 -o "$tmp/suite.o" suite.S
as --64 -o "$tmp/suite2.o" suite2.S
as --64 -o "$tmp/suite3.o" suite3.S
ld -static -nostdlib --build-id=none -z noexecstack -z max-page-size=4096 -T suite.ld -o suite.elf "$tmp/suite.o" "$tmp/suite2.o" "$tmp/suite3.o"
sha256sum suite.S suite2.S suite3.S suite.ld suite.elf >suite.sum
