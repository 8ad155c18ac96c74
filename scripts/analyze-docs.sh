#!/usr/bin/env bash
# Writes the counted part of docs/optimization.md: what guestprobe analyze says of
# the built-in guest, of a Debian kernel, and of this machine's C library.
# Usage: analyze-docs.sh [VMLINUZ...]   (without one: the kernel of the nested hosts)
set -euo pipefail
cd "$(dirname "$0")/.."
kernels=("$@")
[[ ${#kernels[@]} -gt 0 ]] || kernels=("$(scripts/linux/kernel.sh)"/boot/vmlinuz-*)
libc=$(ldconfig -p | sed -n 's/^\tlibc\.so\.6 (libc6,x86-64) => //p' | head -n 1)
[[ -n $libc ]] || { echo "analyze-docs: ldconfig knows no libc.so.6" >&2; exit 1; }
version=$(dpkg-query -W -f '${Package} ${Version}' libc6 2>/dev/null || echo "libc of this machine")

bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
CGO_ENABLED=0 go build -o "$bin/" ./cmd/guestprobe
# One file, under a heading.
counted() {
	printf '### %s\n\n' "$1"
	"$bin/guestprobe" analyze --format markdown --top 6 "$2"
}
doc=docs/optimization.md
{
	sed '/^<!-- analyze:begin -->$/q' "$doc"
	printf '\nWritten by `scripts/analyze-docs.sh` on %s. The code is taken as it is in the file: what a kernel rewrites at boot\n' "$(date -u +%F)"
	printf '(alternatives, return thunks) is not rewritten. A kernel'"'"'s functions that are gone after the boot, or that may not be probed, are left out.\n'
	printf 'In a kernel with ftrace nearly every function begins with a call that the kernel rewrites; *after an ftrace call* is the place right after it,\n'
	printf 'where the arguments are still untouched.\n\n'
	counted "The built-in guest" guest/builtin/builtin.elf
	for k in "${kernels[@]}"; do
		counted "Debian's kernel, $(basename "$k")" "$k"
	done
	counted "glibc, $version" "$libc"
	sed -n '/^<!-- analyze:end -->$/,$p' "$doc"
} >"$bin/doc"
cp "$bin/doc" "$doc"
