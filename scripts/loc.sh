#!/usr/bin/env bash
# Prints the lines of Go of each group: product, tools of those who work on guestprobe, helpers of
# tests, and tests. "code" leaves out blank lines and lines that are only a comment.
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files -z '*.go' | xargs -0 awk '
	FNR == 1 {
		group = "product"
		if (FILENAME ~ /^(internal\/dev|cmd\/gpdev)\//) group = "tools"
		if (FILENAME ~ /^internal\/testing\//) group = "test helpers"
		if (FILENAME ~ /_test\.go$|\/testdata\//) group = "tests"
		files[group]++
	}
	{ lines[group]++ }
	!/^[ \t]*(\/\/.*)?$/ { code[group]++ }
	END {
		n = split("product,tools,test helpers,tests", groups, ",")
		printf "%-14s %7s %8s %8s\n", "", "files", "lines", "code"
		for (i = 1; i <= n; i++) {
			g = groups[i]
			printf "%-14s %7d %8d %8d\n", g, files[g], lines[g], code[g]
			f += files[g]; l += lines[g]; c += code[g]
		}
		printf "%-14s %7d %8d %8d\n", "all", f, l, c
	}'
