#!/usr/bin/env bash
# How much of each package of the product the tests run, in percent of its statements, from all tests and from the
# programs that the command line's scripts run. Fails where it is less than scripts/cover.reasons lets it be.
# Usage: cover.sh [PACKAGE...]  (default ./...; of fewer the figures are shown, and nothing fails)
# Left behind: build/cover/percent, and data for 'go tool covdata' below build/cover/data.
set -euo pipefail
cd "$(dirname "$0")/.."
least=70
module=$(go list -m)
out=$PWD/build/cover
rm -rf "$out"
mkdir -p "$out/data" "$out/bin"
programs=(./cmd/guestprobe ./cmd/guestprobed ./cmd/guestprobe-fleetd)
mapfile -t product < <(go list -deps "${programs[@]}" | grep "^$module/")
list=$(IFS=,; echo "${product[*]}")
# Not guestprobed: it is confined, and may not write what it has counted. Its own tests run it within their process.
go build -cover -coverpkg="$list" -o "$out/bin/" ./cmd/guestprobe ./cmd/guestprobe-fleetd
rc=0
GUESTPROBE_COVER=$out go test -count=1 -timeout 60m -cover -coverpkg="$list" "${@:-./...}" -args -test.gocoverdir="$out/data" >"$out/log" 2>&1 || rc=$?
grep -E '^(---|FAIL|panic)' "$out/log" || true
((rc == 0)) || echo "cover: tests have failed, see build/cover/log; what they have run counts"
go tool covdata percent -i="$out/data" | sed -n "s|^[[:space:]]*$module/\([^[:space:]]*\)[[:space:]]*coverage: \([0-9.]*\)% of statements.*|\2 \1|p" | sort -n >"$out/percent"
awk '{ printf "%6.1f%%  %s\n", $1, $2 }' "$out/percent"
(($# == 0)) || exit "$rc"

# A line of cover.reasons is PACKAGE LEAST REASON.
bad=0
while read -r percent package; do
	want=$(awk -v p="$package" '$1 == p { print $2 }' scripts/cover.reasons)
	if awk -v a="$percent" -v b="${want:-$least}" 'BEGIN { exit !(a < b) }'; then
		echo "cover: $package: $percent %, want ${want:-$least} % or a reason in scripts/cover.reasons"
		bad=1
	elif [[ -n $want ]] && awk -v a="$percent" -v b="$least" 'BEGIN { exit !(a >= b) }'; then
		echo "cover: $package: $percent % needs no reason in scripts/cover.reasons any more"
		bad=1
	fi
done <"$out/percent"
while read -r package least reason; do
	[[ -n $package && $package != \#* ]] || continue
	grep -q " $package\$" "$out/percent" || { echo "cover: scripts/cover.reasons: $package is no package of the product"; bad=1; }
	[[ -n $reason && $least =~ ^[0-9]+$ ]] || { echo "cover: scripts/cover.reasons: $package: want PACKAGE LEAST REASON"; bad=1; }
done <scripts/cover.reasons
exit "$((bad | rc))"
