#!/usr/bin/env bash
# Runs every fuzz target of the module for FUZZTIME each (default 20s).
set -euo pipefail
cd "$(dirname "$0")/.."
go list ./... | while read -r pkg; do
	for target in $(go test -list '^Fuzz' "$pkg" | grep '^Fuzz' || true); do
		echo "== $pkg $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-20s}" "$pkg"
	done
done
