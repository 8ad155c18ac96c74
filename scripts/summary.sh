#!/usr/bin/env bash
# Counts the results in the verbose output of Go tests (file or standard input)
# and prints "PASSED FAILED SKIPPED", then one line per skip with its reason.
set -euo pipefail
tr -d '\r' <"${1:-/dev/stdin}" | awk '
	/^ *--- PASS: / { pass++ }
	/^ *--- FAIL: / { fail++ }
	/^FAIL\t.*\[build failed\]/ { fail++ }
	/^panic: test timed out|^fatal error: |^GP-DONE .* rc=(124|137)/ { fail++ }
	/^ *--- SKIP: / { skip++; names[skip] = $3 }
	/SKIP: needs/ { sub(/.*SKIP: /, ""); why[skip + 1] = $0 }
	END {
		printf "%d %d %d\n", pass, fail, skip
		for (i = 1; i <= skip; i++) printf "skipped %s: %s\n", names[i], (i in why) ? why[i] : "no reason printed"
	}'
