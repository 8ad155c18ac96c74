#!/usr/bin/env bash
# Records what doctor says, here and in the last nested runs, in docs/hosts, and
# writes docs/hosts.md from it. A host without a new record keeps its old one.
set -euo pipefail
cd "$(dirname "$0")/.."
module=$(for m in kvm_pvm kvm_intel kvm_amd; do [[ -d /sys/module/$m ]] && echo $m; done | head -n 1)
# Only a machine that the document has a column for.
if [[ -c /dev/kvm && -f docs/hosts/$module.json ]]; then
	doctor=$(CGO_ENABLED=0 go run ./cmd/guestprobe doctor --format json)
	scripts/nested/record.sh "$(uname -r)" "$module" "" <<<"$doctor" >"docs/hosts/$module.json"
	echo "recorded $module"
fi
for record in vmx:kvm_intel-bochs svm:kvm_amd-qemu; do
	from=build/nested/${record%%:*}/host.json
	if [[ -s $from ]]; then
		cp "$from" "docs/hosts/${record#*:}.json"
		echo "recorded ${record#*:}"
	else
		echo "no new record of ${record#*:} (make test-${record%%:*} leaves one)"
	fi
done
mkdir -p build
go run ./cmd/gpdev hosts docs/hosts >build/hosts.md
mv build/hosts.md docs/hosts.md
