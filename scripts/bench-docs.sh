#!/usr/bin/env bash
# Writes docs/benchmarks.md from measurements on this machine: nothing in it is
# typed by hand.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
go build -buildvcs=auto -trimpath -o bin/ ./cmd/...
bin/gpdev bench --format json >build/bench.json
engine=$(go test -run '^$' -bench 'Hit|Register' -benchmem -count 5 ./probe | grep -E '^(cpu|Benchmark)')
insn=$(go test -run '^$' -bench . -benchmem ./guest/x86 | grep -E '^Benchmark')
event=$(go test -run '^$' -bench . -benchmem ./probe/event ./probe/evbpf ./probe/program | grep -E '^Benchmark')
bpf=$(go test -run '^$' -bench . -benchmem ./probe/bpf | grep -E '^Benchmark')
forms=$(go test -run '^$' -bench Forms -benchtime 3x ./internal/show/timeline | grep -E '^Benchmark')
page=$(go test -run '^TestFeed$' -v -count 1 ./internal/server/web | sed -n 's/^ *feed_test.go:[0-9]*: //p')
stop=$(go test -run '^$' -bench 'Stop|Start' ./kvm/machine | grep -E '^Benchmark')
scripts/bench-jail.sh >build/jail.md
scripts/bench-fleet.sh
{
	cat <<-'EOF'
		# Benchmarks

		Written by `scripts/bench-docs.sh` from one run on one machine; other machines differ, so compare ratios. `make bench` measures yours.
		Nothing here is asserted in a test but the number of exits and allocations.

		## A hit, and what else is on the machine

		`gpdev bench`: the guest calls a function in a loop and times the calls with its own time stamp counter, probed and
		unprobed in turn. *host ns* is the time outside KVM_RUN. The letters are from the kernel's kprobes documentation; `e` is ours.

	EOF
	bin/gpdev bench --from build/bench.json --format markdown
	cat build/jail.md
	cat <<-'EOF'

		## The engine alone

		On the fake guest, five runs: one probe with an empty pre handler; with 10,000 other probes registered; on several vCPUs at
		once (`-cpu` is the number of cores here); and registering and unregistering 10,000 probes in one batch.

	EOF
	printf '```\n%s\n```\n' "$engine"
	cat <<-'EOF'

		## Delivery of events to clients

		50,000 events as records of a stream, read (`read` is that alone) and written as text of a terminal (`table`), NDJSON (`json`) and in the forms
		for other programs, by processor time. The last line is of the page in a headless browser, fed 50,000 events a second for 8 seconds.

	EOF
	printf '```\n%s\npage: %s\n```\n' "$forms" "$page"
	printf '\n## Start and stop of a real guest\n\n```\n%s\n```\n' "$stop"
	printf '\n## Decoder and emulator\n\n```\n%s\n```\n' "$insn"
	printf '\n## Definitions and transport of events\n\n```\n%s\n```\n' "$event"
	printf '\n## Programs\n\n```\n%s\n```\n\n' "$bpf"
	sed -n '/^## Linux guests$/,$p' docs/benchmarks.md # of bench-linux.sh --docs
} >build/benchmarks.md
mv build/benchmarks.md docs/benchmarks.md
echo "docs/benchmarks.md is written"
