#!/usr/bin/env bash
# Runs the tests of a checkout of bpftrace on our compiler and interpreter of scripts (gpdev btsuite): those of its parser
# and checker, its runtime tests as far as they need no guest, and its self tests. Prints how many agree; each difference
# is in build/bpftrace-suite/differences. Nothing is fetched, and nothing of the checkout is kept here.
# Usage: bpftrace-suite.sh CHECKOUT
#   GUESTPROBE_SUITE_BTF    types of a Linux kernel (default /sys/kernel/btf/vmlinux, if it is there)
#   GUESTPROBE_SUITE_GUEST  svm: run the runtime tests that need a guest, too, in a Linux guest on this nested host; their
#                           differences are in build/bpftrace-suite/guest-differences
#   GUESTPROBE_SUITE_MATCH  with it: only the tests whose names match this expression
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
	local name from=$checkout/tests/testprogs split flags
	rm -rf "$programs"
	mkdir -p "$programs"/external_debug/{dwo,dwp}
	for name in $(grep -rhoE '\./testprogs/[a-z0-9_]+(-pie)?' "$checkout/tests/runtime" | sed 's,.*/,,' | sort -u); do
		flags=(-O0 -fno-omit-frame-pointer)
		[[ $name != uprobe_nofp* ]] || flags=(-O1 -fomit-frame-pointer -fno-optimize-sibling-calls)
		[[ $name != *-pie ]] && flags+=(-no-pie) || flags+=(-fpie -pie)
		if [[ -f $from/${name%-pie}.c ]] && ! gcc -w -g "${flags[@]}" -pthread -I "$checkout/tests/include" -o "$programs/$name" "$from/${name%-pie}.c" -ldl 2>/dev/null; then
			echo "bpftrace-suite: ${name%-pie}.c does not compile: tests that probe it may differ" >&2
		fi
	done
	name=uprobe_test
	[[ -f $from/$name.c && -f $programs/$name ]] || return 0
	if command -v objcopy >/dev/null; then
		objcopy --only-keep-debug "$programs/$name" "$programs/external_debug/$name-stripped.debug"
		objcopy --strip-debug "$programs/$name" "$programs/$name-stripped"
		name=uprobe_separate_debug
		if [[ -f $programs/$name ]]; then
			mkdir -p "$programs/.debug"
			objcopy --only-keep-debug "$programs/$name" "$programs/.debug/$name-stripped.debug"
			objcopy --strip-debug --add-gnu-debuglink="$programs/.debug/$name-stripped.debug" "$programs/$name" "$programs/$name-stripped"
		fi
		name=uprobe_test
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
# guest_files DIR: what a guest has for the tests besides its initrd: the programs, the libraries that they need, bash, and what
# stands for python3.
guest_files() {
	local to=$1 file
	rm -rf "$to"
	mkdir -p "$to"/{bin,lib,lib64,testlibs,tmp}
	cp -r "$programs" "$to/_testprogs" # scripts name them by this path, as long as ./testprogs
	ln -s _testprogs "$to/testprogs"
	rm -f "$to"/_testprogs/external_debug/*-stripped.debug
	gcc -w -g -O0 -shared -fPIC -o "$to/testlibs/libsimple.so" "$checkout/tests/testlibs/simple.c"
	chmod -x "$to/testlibs/libsimple.so"
	if gcc -w -c -o "$work/false.o" "$checkout/tests/testprogs/false.c"; then objcopy -S --only-section=.text -O binary "$work/false.o" "$to/_testprogs/false.bin"; fi
	cp "$(command -v bash)" "$to/bin/bash"
	cp -L /lib64/ld-linux-x86-64.so.2 "$to/lib64/"
	for file in $(ldd /bin/bash "$programs/syscall" | sed -n 's/.* => \([^ ]*\) .*/\1/p' | sort -u); do cp -L "$file" "$to/lib/"; done
	# The tests use it to print a long word only.
	printf '%s\n' '#!/bin/sh' 'n=$(expr "$2" : ".*\*\([0-9]*\))")' 'head -c "$n" /dev/zero | tr "\0" X' >"$to/bin/python3"
	chmod +x "$to/bin/python3"
	cp scripts/nested/btsuite-guest.sh "$to/suite.sh"
}

go run ./cmd/gpdev btsuite "$checkout" "${flags[@]}"
if [[ -n ${GUESTPROBE_SUITE_GUEST:-} ]]; then
	suite=$PWD/$work/suite
	rm -rf "$suite"
	mkdir -p "$suite/checkout"
	guest_files "$work/guest"
	(cd "$work/guest" && find . -print0 | cpio --null --quiet -H newc -o -R 0:0 | gzip -1n) >"$suite/guest.cpio.gz"
	cp -r "$checkout/tests" "$suite/checkout/"
	rm -rf "$suite"/checkout/tests/{codegen,fuzz*,llvm*}
	cp -r "$programs" "$suite/testprogs"
	cp scripts/bpftrace-suite.rules "$suite/rules"
	echo "${GUESTPROBE_SUITE_SLOW:-3}" >"$suite/slow"
	echo "${GUESTPROBE_SUITE_MATCH:-.}" >"$suite/match"
	rc=0
	GUESTPROBE_SUITE=$suite scripts/nested.sh "$GUESTPROBE_SUITE_GUEST" btsuite || rc=$?
	tr -d '\r' <"build/nested/$GUESTPROBE_SUITE_GUEST-btsuite/console.log" | sed -n '/^GP-DIFFERENCES$/,/^GP-DIFFERENCES-END$/p' | sed '1d;$d' >"$work/guest-differences"
	echo "bpftrace-suite: the differences of the tests in the guest are in $work/guest-differences"
	exit "$rc"
fi
[[ -c /dev/kvm ]] || echo "bpftrace-suite: there is no /dev/kvm: tests that need a guest were compiled only (NEED-GUEST)"
echo "bpftrace-suite: the differences are in $work/differences"
