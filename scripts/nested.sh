#!/usr/bin/env bash
# Runs the suite on a real upstream KVM inside an emulated machine: kvm_intel
# under Bochs (vmx) or kvm_amd under QEMU (svm). Ends with the tests' own exit
# code. Usage: nested.sh vmx|svm
#   GUESTPROBE_NESTED_SECONDS  cut off after that long (default 1300 vmx, 900 svm)
set -euo pipefail
cd "$(dirname "$0")/.."
host=${1:-}
case $host in
vmx) limit=${GUESTPROBE_NESTED_SECONDS:-1300} ;;
svm) limit=${GUESTPROBE_NESTED_SECONDS:-900} ;;
*) echo "usage: $0 vmx|svm" >&2; exit 2 ;;
esac
[[ $(uname -sm) == "Linux x86_64" ]] || { echo "nested $host: needs an x86-64 Linux machine, this is $(uname -sm)" >&2; exit 1; }
command -v go >/dev/null || { echo "nested $host: go is not in PATH" >&2; exit 1; }

scripts/nested/packages.sh "$host"
out=$PWD/build/nested/$host
payload=$out/payload
rm -rf "$payload"
mkdir -p "$payload"
echo "nested $host: building the static test binaries"
export CGO_ENABLED=0
go build -trimpath -ldflags '-s -w' -o "$payload/" ./cmd/...
for pkg in kvm internal/machine; do
	go test -c -trimpath -ldflags '-s -w' -o "$payload/$(basename "$pkg").test" "./$pkg"
done
# Tests run where their package is, beside the test data they read.
mkdir -p "$payload/internal/machine" "$payload/probe/insn/testdata"
cp probe/insn/testdata/corpus.tsv "$payload/probe/insn/testdata/"
cp "scripts/nested/plan.$host" "$payload/plan"
scripts/nested/image.sh "$host" "$payload" "$out"
echo "nested $host: booting (console in build/nested/$host/console.log)"
rc=0
scripts/nested/run.sh "$host" "$out" "$limit" || rc=$?
# What doctor said there, for docs/hosts.md.
tr -d '\r' <"$out/console.log" | sed -n '/^GP-RUN doctor/,/^GP-DONE doctor/p' | grep -v '^GP-' >"$out/doctor.json" || true
exit "$rc"
