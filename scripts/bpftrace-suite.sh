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
else
	echo "bpftrace-suite: gcc is not installed: tests that name types differ" >&2
fi
go run ./cmd/gpdev btsuite "$checkout" "${flags[@]}"
[[ -c /dev/kvm ]] || echo "bpftrace-suite: there is no /dev/kvm: tests that need a guest were compiled only (NEED-GUEST)"
echo "bpftrace-suite: the differences are in $work/differences"
