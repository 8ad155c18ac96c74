#!/usr/bin/env bash
# Runs the tests of a checkout of bpftrace on our compiler and interpreter of scripts (gpdev btsuite): those of its parser
# and checker, its runtime tests as far as they need no guest, and its self tests. Prints how many agree; each difference
# is in build/bpftrace-suite/differences. Nothing is fetched, and nothing of the checkout is kept here.
# Usage: bpftrace-suite.sh CHECKOUT
#   GUESTPROBE_SUITE_BTF  types of a Linux kernel (default /sys/kernel/btf/vmlinux, if it is there)
# The totals in docs/compatibility.md are of the commit that is named here:
set -euo pipefail
tried=e1b7c39341f77374ba8fe8febfa2284896c4941d # of 2026-08-08
cd "$(dirname "$0")/.."
[[ -n ${1:-} ]] || { echo "bpftrace-suite: name a checkout of bpftrace: make test-bpftrace-suite BPFTRACE=DIRECTORY" >&2; exit 2; }
checkout=$(realpath "$1")
work=build/bpftrace-suite
mkdir -p "$work"
if commit=$(git -C "$checkout" rev-parse --show-toplevel 2>/dev/null) && [[ $commit == "$checkout" ]]; then
	commit=$(git -C "$checkout" rev-parse HEAD)
	[[ $commit == "$tried" ]] || echo "bpftrace-suite: the checkout is $commit; the figures in docs/compatibility.md are of $tried" >&2
else
	echo "bpftrace-suite: the checkout does not say its commit; the figures in docs/compatibility.md are of $tried" >&2
fi

# make_programs compiles upstream's test programs that runtime tests probe, in the forms of its CMakeLists.txt.
programs=$work/testprogs
make_programs() {
	local name from=$checkout/tests/testprogs split
	rm -rf "$programs"
	mkdir -p "$programs"/external_debug/{dwo,dwp}
	for name in $(grep -rhoE '\b(u|ur|uprobe|uretprobe):\./testprogs/[a-z0-9_]+' "$checkout/tests/runtime" | sed 's,.*/,,' | sort -u); do
		if [[ -f $from/$name.c ]] && ! gcc -w -g -O0 -no-pie -fno-omit-frame-pointer -pthread -I "$checkout/tests/include" -o "$programs/$name" "$from/$name.c" 2>/dev/null; then
			echo "bpftrace-suite: $name.c does not compile: tests that probe it may differ" >&2
		fi
	done
	name=uprobe_test
	[[ -f $from/$name.c && -f $programs/$name ]] || return 0
	if command -v objcopy >/dev/null; then
		objcopy --only-keep-debug "$programs/$name" "$programs/external_debug/$name-stripped.debug"
		objcopy --strip-debug "$programs/$name" "$programs/$name-stripped"
	else
		echo "bpftrace-suite: objcopy is not installed: tests with separate debug information differ" >&2
	fi
	for split in dwo dwp; do
		gcc -w -g -O0 -gsplit-dwarf -o "$programs/external_debug/$split/$name-split" "$from/$name.c"
	done
	if command -v llvm-dwp >/dev/null; then
		timeout 60 llvm-dwp -e "$programs/external_debug/dwp/$name-split" -o "$programs/external_debug/dwp/$name-split.dwp"
		rm -f "$programs"/external_debug/dwp/*.dwo
	else
		echo "bpftrace-suite: llvm-dwp is not installed: tests with a package of debug information read the parts" >&2
	fi
}

flags=(--rules scripts/bpftrace-suite.rules --differences "$work/differences")
btf=${GUESTPROBE_SUITE_BTF:-/sys/kernel/btf/vmlinux}
if [[ -r $btf ]]; then
	flags+=(--btf "$btf")
else
	echo "bpftrace-suite: $btf is not there: tests that name the kernel's types or functions differ" >&2
fi
# The types that upstream's unit tests see are those of a program of its own.
if command -v gcc >/dev/null; then
	gcc -w -g -O0 -o "$work/types" "$checkout/tests/data/data_source.c"
	flags+=(--types "$work/types")
	make_programs
	flags+=(--programs "$programs")
else
	echo "bpftrace-suite: gcc is not installed: tests that name types, or parameters in upstream's test programs, differ" >&2
fi
go run ./cmd/gpdev btsuite "$checkout" "${flags[@]}"
[[ -c /dev/kvm ]] || echo "bpftrace-suite: there is no /dev/kvm: tests that need a guest were compiled only (NEED-GUEST)"
echo "bpftrace-suite: the differences are in $work/differences"
