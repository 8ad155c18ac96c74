#!/usr/bin/env bash
# The full proof of guest/x86: gathers binaries with well over ten million
# instructions (a Debian kernel image, Go's own toolchain, libc, and large
# programs and libraries of this machine) and compares every one with objdump,
# then runs the emulator against this CPU for two million random states.
# The kernel comes out of its package and is kept, with the list of the files,
# under ${XDG_CACHE_HOME:-~/.cache}/guestprobe/insn; nothing is installed.
# "insn-corpus.sh list" only makes the list. Needs binutils, apt-get, dpkg, and
# xz or zstd.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/guestprobe/insn
mkdir -p "$cache"

# field FILE OFFSET SIZE prints a little-endian number of a bzImage header.
field() { od -An -t "u$3" -j "$2" -N "$3" "$1" | tr -d ' '; }

# unpack_bzimage VMLINUZ OUT extracts the ELF inside (Linux boot protocol:
# setup_sects at 0x1f1, payload_offset and payload_length at 0x248 and 0x24c).
unpack_bzimage() {
	local at len magic
	at=$((($(field "$1" 0x1f1 1) + 1) * 512 + $(field "$1" 0x248 4)))
	len=$(field "$1" 0x24c 4)
	magic=$(od -An -t x1 -j "$at" -N 4 "$1" | tr -d ' ')
	case $magic in
	fd377a58) tool=xz ;;
	28b52ffd) tool=zstd ;;
	1f8b*) tool=gzip ;;
	*) echo "insn-corpus: unknown compression $magic in $1" >&2; return 1 ;;
	esac
	# The last four bytes of the payload are the unpacked size, not the stream.
	tail -c +$((at + 1)) "$1" | head -c $((len - 4)) | "$tool" -dcq >"$2.new" || [ -s "$2.new" ]
	readelf -h "$2.new" >/dev/null
	mv "$2.new" "$2"
}

if [ ! -s "$cache/vmlinux" ]; then
	work=$(mktemp -d "$cache/work.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	pkg=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: *\(linux-image-[^ ]*\).*/\1/p' | head -n 1)
	[ -n "$pkg" ] || { echo "insn-corpus: no kernel package: run apt-get update" >&2; exit 1; }
	(cd "$work" && apt-get download -q "$pkg" >&2 && dpkg -x ./*.deb tree)
	unpack_bzimage "$(ls "$work"/tree/boot/vmlinuz-* | head -n 1)" "$cache/vmlinux"
	echo "$pkg" >"$cache/vmlinux.package"
fi

# text FILE prints the size of its executable sections in bytes.
text() {
	local sum=0 size
	for size in $(objdump -h -w "$1" 2>/dev/null | awk '/CODE/ { print $3 }'); do
		sum=$((sum + 16#$size))
	done
	echo "$sum"
}

goroot=$(go env GOROOT)
libc=$(ldconfig -p | awk '/libc\.so\.6 .*x86-64/ { print $NF; exit }')
have=0
want=60000000 # 4.3 bytes is the usual mean, so this is some 14 million
: >"$cache/files.new"
for f in "$cache/vmlinux" "$goroot/bin/go" "$goroot/pkg/tool/linux_amd64/compile" "$libc" \
	/usr/lib/x86_64-linux-gnu/lib{m.so.6,crypto.so.3,stdc++.so.6,gcrypt.so.20,x264.so.164} \
	/usr/bin/{python3,gdb,perl} /usr/lib/gcc/x86_64-linux-gnu/*/cc1 /usr/bin/node; do
	[ -r "$f" ] && [ "$have" -lt "$want" ] || continue
	size=$(text "$f")
	[ "$size" -gt 0 ] || continue
	realpath "$f" >>"$cache/files.new"
	have=$((have + size))
done
mv "$cache/files.new" "$cache/files"
[ "$have" -ge "$want" ] || echo "insn-corpus: only $have bytes of text on this machine" >&2
[ "${1-}" = list ] && exit 0
GUESTPROBE_INSN_CORPUS=full exec go test -count=1 -v -timeout 60m -run 'Corpus|Sweep|Assembler|Native' ./guest/x86
