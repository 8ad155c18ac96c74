#!/usr/bin/env bash
# Counts the results in the verbose output of Go tests, or in the console of a
# nested host (a file, or standard input), and prints "PASSED FAILED SKIPPED",
# then one line per failed test with what it said last, and one per skip with
# its reason. A package or a step of a nested host that failed without a failed
# test of its own (leak, crash, build, hang) is one failure; a step that has no
# tests is one itself.
set -euo pipefail
tr -d '\r' <"${1:-/dev/stdin}" | awk '
	function step(bad) { if (bad && !failed) fail++; failed = ran = 0 }
	/^ *--- PASS: / { pass++; ran++ }
	/^ *--- FAIL: / { fail++; ran++; failed++; broke[fail] = $3; said[fail] = last }
	/^ *--- SKIP: / { skip++; ran++; names[skip] = $3 }
	/^ +([a-z0-9_]+_test\.go:[0-9]+|FAIL): / { last = substr($0, 1, 400); sub(/^ +/, "", last) }
	/^=== RUN|^ *--- / { last = "" }
	/SKIP: needs/ { sub(/.*SKIP: /, ""); why[skip + 1] = $0 }
	/^ok  \t/ { step(0) }
	/^FAIL\t/ { step(1) }
	/^GP-RUN / { failed = ran = 0; open = 1 }
	/^GP-DONE / {
		good = / rc=0( |$)/
		if (good && !ran) pass++
		step(!good)
		open = 0
	}
	END {
		if (open) step(1) # it never came to its end
		printf "%d %d %d\n", pass, fail, skip
		for (i = 1; i <= fail; i++) if (i in broke) printf "failed %s: %s\n", broke[i], said[i] == "" ? "its part of the log says why" : said[i]
		for (i = 1; i <= skip; i++) printf "skipped %s: %s\n", names[i], (i in why) ? why[i] : "no reason printed"
	}'
