#!/usr/bin/env bash
# What a change must pass before it is committed.
set -euo pipefail
cd "$(dirname "$0")/.."
bad=$(git ls-files '*.go' | xargs gofmt -l)
[[ -z $bad ]] || { printf 'not gofmt-clean:\n%s\n' "$bad" >&2; exit 1; }
go vet ./...
go vet -tags linuxrules ./internal/analyze # what scripts/linux-rules.sh runs
go vet -tags slowguest ./kvm
# Pinned here, and not in go.mod: nothing but this script needs it.
go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...
go mod tidy -diff
go mod verify >/dev/null
go test -count=1 -timeout 20m ./...
go test -run '^$' -bench . -benchtime 1x ./probe/... ./guest/... >/dev/null
echo "check: all passed"
