#!/usr/bin/env bash
# Loads object files of eBPF tools, such as those of bcc's libbpf-tools, for a kernel that
# does not run, and prints a table in Markdown of what became of each: how many programs
# of each kind of section load, how many of them can run in the guest, and which sections
# are refused. Usage: bcc-tools.sh FOLDER VMLINUZ
#   FOLDER   of *.bpf.o; tools have most programs several times, for several kernels, so
#            that programs at functions which this kernel does not have are left out; names
#            that only stand for a function are replaced by some that it has
# Objects are made as the tools' Makefile does: clang -g -O2 -target bpf -D__TARGET_ARCH_x86.
set -euo pipefail
folder=${1:?usage: bcc-tools.sh FOLDER VMLINUZ} kernel=${2:?usage: bcc-tools.sh FOLDER VMLINUZ}
cd "$(dirname "$0")/.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
go build -o "$tmp/guestprobe" ./cmd/guestprobe

groups=(
	'kprobe,kretprobe,kprobe/*,kretprobe/*,kprobe.multi/*,kretprobe.multi/*,ksyscall/*,kretsyscall/*'
	'fentry/*,fexit/*,fentry.s/*,fexit.s/*'
	'tracepoint/syscalls/*,tp/syscalls/*'
	'raw_tp/*,raw_tracepoint/*,tp_btf/*,tracepoint/[^s]*/*,tp/[^s]*/*,tracepoint/s[^y]*/*,tp/s[^y]*/*'
	'uprobe,uretprobe,uprobe/*,uretprobe/*,uprobe/*/*,uretprobe/*/*'
)
served='^(kprobe|kretprobe|kprobe\.multi|kretprobe\.multi|ksyscall|kretsyscall|fentry|fexit|fentry\.s|fexit\.s|uprobe|uretprobe|raw_tp|raw_tracepoint|tp_btf|tracepoint|tp)(/|$)'

# What the tools themselves set when they start, as users do here with --at.
file=generic_file
at=dummy_file_read=${file}_read_iter,dummy_file_write=${file}_write_iter,dummy_file_open=${file}_open,dummy_file_sync=noop_fsync,dummy_getattr=simple_getattr
at+=,dummy_kprobe=vfs_read,dummy_kretprobe=vfs_read,dummy_fentry=vfs_read,dummy_fexit=vfs_read,foo=vfs_read

# places FILE: where programs of a file are at whose section says nothing, as "uprobe": the tools attach these to
# functions of a library. Any place will do here.
places() {
	readelf -SW "$1" | sed -n 's/^ *\[ *\([0-9]*\)\] \(uprobe\|uretprobe\) .*/\1/p' | while read -r section; do
		readelf -sW "$1" | awk -v s="$section" '$4 == "FUNC" && $7 == s { printf ",%s=/usr/lib/library.so:%s", $8, $8 }'
	done
}

# cell SECTIONS FILE: what one group of sections came to.
cell() {
	local out
	if ! out=$("$tmp/guestprobe" bpf check --kernel "$kernel" --skip-missing --at "$at$(places "$2")" --section "$1" "$2" 2>/dev/null); then
		case $out in
		*'no such section'*) echo '-' ;;
		*'the guest has no function of'*) echo 'other kernels' ;;
		*) echo "${out#*: }" | head -n 1 | tr '|' '/' ;;
		esac
		return
	fi
	local all guest left
	all=$(grep -c ' at .*: \(can run\|runs on\)' <<<"$out" || true)
	guest=$(grep -c ': can run in the guest$' <<<"$out" || true)
	left=$(sed -n 's/.*programs at //p' <<<"$out" | tr ',' '\n' | grep -c . || true)
	echo "$all ($guest)$( ((left == 0)) || echo ", $left left out")"
}

echo "| tool | kprobe, ksyscall | fentry, fexit | system calls | tracepoints, events | uprobe | refused sections |"
echo "|---|---|---|---|---|---|---|"
tools=0 loading=0
for file in "$folder"/*.bpf.o; do
	name=$(basename "$file" .bpf.o)
	refused=$(readelf -SW "$file" | sed -n 's/^ *\[ *[0-9]*\] \([^ ]*\) *PROGBITS.* AX .*/\1/p' | grep -v '^\.text$' | grep -Ev "$served" | sed 's,/.*,,' | sort | uniq -c | awk '{printf "%s%d %s", (NR > 1 ? ", " : ""), $1, $2}' || true)
	line="| $name" any=
	for g in "${groups[@]}"; do
		c=$(cell "$g" "$file")
		[[ $c != [0-9]* ]] || any=1
		line+=" | $c"
	done
	echo "$line | ${refused:--} |"
	((++tools))
	[[ -z $any ]] || ((++loading))
done
echo
echo "$loading of $tools tools have programs that load; in brackets those that can run in the guest."
