#!/bin/bash
# Builds builtin.elf, the built-in guest, from src/. Needs Debian's gcc, binutils
# and dwarves, whose pahole makes BTF of the debug information. The result depends on the sources and the tools only: no paths, no
# dates. A note in the ELF holds the hash of its sources; builtin_test.go
# compares it with the sources that are there.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")"

out=${1:-builtin.elf}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp"/{kernel,kshapes,user,ushapes}

# sha256 over the lines "<sha256 of file>  <path>" of the sources, by path.
find build.sh src -type f | sort | xargs sha256sum | sha256sum |
	cut -c1-64 | tr -d '\n' >"$tmp/sources.sha256"

common=(-O2 -g -std=gnu11 -ffreestanding -fno-omit-frame-pointer
	-fno-stack-protector -fno-asynchronous-unwind-tables -fno-common
	-fno-strict-aliasing -Wall -Wextra -Werror
	-ffile-prefix-map="$PWD"=. -ffile-prefix-map="$tmp"=.
	-gno-record-gcc-switches -Wa,-I"$tmp" -Isrc/include -Isrc/shapes)
kernel=(-mgeneral-regs-only -mno-red-zone -fno-pic -mcmodel=kernel
	-fcf-protection=none)
# CPL3 is far from the kernel: position independent, with SSE2 and a red zone.
user=(-fpie -fcf-protection=none -mno-avx -DGP_USER)

compile() { # directory, source, flags...
	local dir=$1 src=$2 base
	shift 2
	base=$(basename "$src")
	gcc "${common[@]}" "$@" -c "$src" -o "$tmp/$dir/${base//./_}.o"
}

for f in src/kernel/*.[cS]; do
	case $f in
	# Entries with endbr64, as distributions build their kernels.
	*/fs.c | */fork.c | */syscall.c | */net.c) compile kernel "$f" "${kernel[@]}" -fcf-protection=branch ;;
	*) compile kernel "$f" "${kernel[@]}" ;;
	esac
done
for f in src/shapes/*.[cS]; do
	compile kshapes "$f" "${kernel[@]}"
	compile ushapes "$f" "${user[@]}" -mgeneral-regs-only
done
for f in src/user/*.[cS]; do
	compile user "$f" "${user[@]}"
done

(cd "$tmp" && ld -nostdlib -static -z max-page-size=4096 -z noexecstack \
	--build-id=sha1 --fatal-warnings -T "$OLDPWD/src/guest.lds" \
	-o out.elf kernel/*.o kshapes/*.o user/*.o ushapes/*.o)
pahole -J "$tmp/out.elf"
mv "$tmp/out.elf" "$out"
chmod 644 "$out"
