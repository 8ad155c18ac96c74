#!/usr/bin/env bash
# Runs the scripts of testdata/bpftrace in the real bpftrace, in a machine that QEMU
# emulates (nested.sh), keeps what it prints in testdata/bpftrace/golden.txtar, and
# compares ours with that, as tests do from then on.
# Usage: bpftrace.sh [all]
#   all  run all scripts again, not only those that this version has not run yet
#   GUESTPROBE_BPFTRACE  which one: see nested.sh
set -euo pipefail
cd "$(dirname "$0")/.."
golden=testdata/bpftrace/golden.txtar
[[ ${1:-} != all ]] || rm -f "$golden"
rc=0
scripts/nested.sh svm bpftrace || rc=$?
kept=build/nested/svm-bpftrace/golden.txtar
tr -d '\r' <build/nested/svm-bpftrace/console.log | sed -n 's/^GP-KEPT //p' | base64 -d | gzip -dc >"$kept" ||
	{ echo "bpftrace: nothing was kept (see above)" >&2; exit 1; }
cp "$kept" "$golden"
echo "bpftrace: $(head -n 1 "$kept")"
exit "$rc"
