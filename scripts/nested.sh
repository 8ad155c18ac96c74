#!/usr/bin/env bash
# Runs the suite on a real upstream KVM inside an emulated machine: kvm_intel
# under Bochs (vmx) or kvm_amd under QEMU (svm). Ends with the tests' own exit
# code. Usage: nested.sh vmx|svm [PLAN | PACKAGE [FLAG...]]
# scripts/nested/plan.PLAN says what runs; the plan is by default that of the host.
# With a package only its tests run, verbosely, with these flags of the test binary:
#   scripts/nested.sh vmx ./kvm/machine -test.run TestWatch -test.count 3
#   GUESTPROBE_NESTED_SECONDS  cut off after that long (default 2400)
#   GUESTPROBE_NESTED_HANG     cut off after that long without a sign of life (default 400)
#   GUESTPROBE_NESTED_SCALE    factor for the default limit and all limits of the plan (default: 1, or more
#                              on a machine that is busy when the run begins)
#   GUESTPROBE_NESTED_CPUS     processors of the svm host (default 2; 1 for a plan of its
#                              own, because Linux guests want 1)
#   GUESTPROBE_NESTED_COUNTED  not empty: time of the svm host is counted in instructions, a
#                              nanosecond each, as that of the vmx host always is
#   GUESTPROBE_BPFTRACE        which bpftrace a plan compares with: what scripts/linux/kernel.sh
#                              takes (default sid/bpftrace, the newest), or, for its tools only, the
#                              absolute path of a checkout
#   GUESTPROBE_SUITE           what the plan btsuite takes from scripts/bpftrace-suite.sh
#   GUESTPROBE_KERNELS         the Linux guests there: names for scripts/linux/guests.sh,
#                              with spaces between (default: the kernel of the host)
# Results, below build/nested/HOST or HOST-PLAN: console.log, emulator.log, and, of
# the host's own plan, host.json for docs/hosts (see hosts.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
host=${1:-}
fail() { echo "nested $host: $*" >&2; exit 1; }
case $host in
vmx) limit=${GUESTPROBE_NESTED_SECONDS:-2400} module=kvm_intel package=bochs ;;
svm) limit=${GUESTPROBE_NESTED_SECONDS:-2400} module=kvm_amd package=qemu-system-x86 ;;
*) echo "usage: $0 vmx|svm [PACKAGE [FLAG...]]" >&2; exit 2 ;;
esac
shift
# Emulated work takes as long as the processors let it: an idle machine needs no more than the plan says.
scale=${GUESTPROBE_NESTED_SCALE:-$(awk -v n="$(nproc)" '{ print 1 + int($1 / n) }' /proc/loadavg)}
[[ $scale =~ ^[1-9][0-9]?$ ]] || fail "GUESTPROBE_NESTED_SCALE=$scale: want a number from 1 to 99"
[[ -n ${GUESTPROBE_NESTED_SECONDS:-} ]] || limit=$((limit * scale))
export GUESTPROBE_NESTED_HANG=$((${GUESTPROBE_NESTED_HANG:-400} * scale))
[[ $scale == 1 ]] || echo "nested $host: time limits are $scale times the plan's"
[[ $(uname -sm) == "Linux x86_64" ]] || fail "needs an x86-64 Linux machine, this is $(uname -sm)"
command -v go >/dev/null || fail "go is not in PATH"

scripts/packages.sh "$host"
plan=$host out=$PWD/build/nested/$host
if [[ ${1:-} =~ ^[a-z-]+$ && -f scripts/nested/plan.$1 ]]; then
	plan=$1 out+=-$1
	export GUESTPROBE_NESTED_CPUS=${GUESTPROBE_NESTED_CPUS:-1}
	shift
fi
payload=$out/payload
mkdir -p "$out" || fail "$out cannot be made; check its permissions and free space (df -h)"
exec 9>"$out/lock"
flock -n 9 || fail "another run is at work in $out"
# Nothing of a run before this one is ever taken for its own.
rm -rf "$payload" "$out"/*.log "$out"/*.json
mkdir -p "$payload"

if (($# > 0)); then
	[[ -d $1 ]] || fail "$1 is no plan, and no folder of a package"
	dir=$(realpath --relative-to . "$1")
	shift
	echo "tests $limit cd $dir && ./run.test -test.v -test.timeout ${limit}s$( (($# == 0)) || printf ' %q' "$@")" >"$payload/plan"
else
	awk -v scale="$scale" '/^#/ { next } {
		$2 *= scale
		if (match($0, /-test\.timeout [0-9]+/)) {
			seconds = substr($0, RSTART + 14, RLENGTH - 14) * scale
			$0 = substr($0, 1, RSTART + 13) seconds substr($0, RSTART + RLENGTH)
		}
		print
	}' "scripts/nested/plan.$plan" >"$payload/plan"
fi
echo "nested $host: building the static test binaries"
export CGO_ENABLED=0
build() { "$@" || fail "the build failed (see above; no space? df -h $out, ~/.cache)"; }
build go build -trimpath -ldflags '-s -w' -o "$payload/" ./cmd/guestprobe ./cmd/guestprobed
cp scripts/linux/demo.sh scripts/nested/vms.sh "$payload/"
if grep -q -- ' -bpftrace ' "$payload/plan"; then
	if [[ ${GUESTPROBE_BPFTRACE:-} == /* ]]; then
		ls "$GUESTPROBE_BPFTRACE"/tools/*.bt >/dev/null || fail "GUESTPROBE_BPFTRACE=$GUESTPROBE_BPFTRACE is no checkout of bpftrace: it has no tools/*.bt"
		mkdir -p "$payload/bpftrace/usr/sbin"
		cp "$GUESTPROBE_BPFTRACE"/tools/*.bt "$payload/bpftrace/usr/sbin/"
	else
		bpftrace=$(scripts/linux/kernel.sh "${GUESTPROBE_BPFTRACE:-sid/bpftrace}")
		cp -r "$bpftrace" "$payload/bpftrace"
		rm -rf "$payload"/bpftrace/usr/{share,lib/*-linux-gnu/gconv}
	fi
	cp scripts/nested/bpftrace.sh "$payload/"
fi
if grep -q 'btsuite.sh' "$payload/plan"; then
	[[ -n ${GUESTPROBE_SUITE:-} ]] || fail "this plan is for scripts/bpftrace-suite.sh, which prepares its files"
	cp -r "$GUESTPROBE_SUITE" "$payload/suite"
	cp scripts/nested/btsuite.sh "$payload/"
	build go build -trimpath -ldflags '-s -w' -o "$payload/" ./cmd/gpdev
fi
if grep -qE 'internal/server/http && .*TestLinux' "$payload/plan"; then
	# GDB (without Python), its libraries, and the loader that takes them from there.
	root=$(scripts/linux/kernel.sh gdb-minimal)
	libs=$root/lib/x86_64-linux-gnu
	mkdir "$payload/gdb"
	cp -L "$libs/ld-linux-x86-64.so.2" $("$libs/ld-linux-x86-64.so.2" --library-path "$libs:$root/usr/lib/x86_64-linux-gnu" --list "$root/usr/bin/gdb" | grep -o "$root/[^ ]*") "$payload/gdb/"
	cp "$root/usr/bin/gdb" "$payload/gdb/program"
	printf '#!/bin/sh\nexec /t/gdb/ld-linux-x86-64.so.2 --library-path /t/gdb /t/gdb/program "$@"\n' >"$payload/gdb/gdb"
	chmod +x "$payload/gdb/gdb"
fi
# Tests run where their package is, and find the test data of all packages.
find . -path ./build -prune -o -name testdata -type d -exec cp -r --parents -t "$payload" {} +
cp --parents -t "$payload" docs/examples/*.bt
for dir in $(sed -n 's/.* cd \([^ ]*\) && .*/\1/p' "$payload/plan"); do
	mkdir -p "$payload/$dir"
	build go test -c -trimpath -ldflags '-s -w' -o "$payload/$dir/run.test" "./$dir"
done
read -ra kernels <<<"${GUESTPROBE_KERNELS:-}"
extra=() # what tests of the plan ask for: suites of the kernel itself, and tools
! grep -q -- TestSuite "$payload/plan" || extra+=(--suites)
! grep -q -- TestLinuxTools "$payload/plan" || extra+=(--tools)
scripts/linux/guests.sh "${extra[@]}" "$payload/linux" "${kernels[@]}"
scripts/nested/image.sh "$host" "$payload" "$out"
echo "nested $host: booting (console in ${out#"$PWD"/}/console.log)"
rc=0
scripts/nested/run.sh "$host" "$out" "$limit" 9>&- || rc=$?

# What doctor said there. Lines of the kernel may come in between.
doctor=$(tr -d '\r' <"$out/console.log" | sed -n '/^GP-RUN doctor/,/^GP-DONE doctor rc=0/p' | grep -E '^[ {}]' || true)
kernel=$(tr -d '\r' <"$out/console.log" | sed -n 's/^GP-BOOTED.* kernel=\([^ ]*\).*/\1/p')
if [[ -n $doctor ]]; then
	emulator="$package $(dpkg-query -W -f '${Version}' "$package")"
	scripts/nested/record.sh "$kernel" "$module" "$emulator" <<<"$doctor" >"$out/host.json"
fi
exit "$rc"
