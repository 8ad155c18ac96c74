#!/usr/bin/env bash
# Measures what fleets of 10, 50 and 200 daemons cost, and writes it into docs/fleet.md. Takes 3 minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
mkdir -p build
load=$(cut -d " " -f 1 /proc/loadavg)
go test -run '^TestFleetCosts$' -count 1 -timeout 20m ./internal/server/http -args -fleet-costs "$PWD/build/fleet-costs.md"
doc=docs/fleet.md
{
	sed '/^<!-- costs:begin -->$/q' "$doc"
	# shellcheck disable=SC2016 # it is Markdown
	printf '\nWritten by `scripts/bench-fleet.sh`. Machine: %s, %d cores, Linux %s, load average before it %s. %s, commit %s.\n\n' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" "$(nproc)" "$(uname -r)" "$load" "$(date -u +%F)" "$(git rev-parse --short=12 HEAD)"
	cat build/fleet-costs.md
	echo
	sed -n '/^<!-- costs:end -->$/,$p' "$doc"
} >build/fleet.md
cp build/fleet.md "$doc"
