#!/usr/bin/env bash
# Counts the results in the verbose output of Go tests, or in the console of a
# nested host (a file, or standard input), and prints "PASSED FAILED SKIPPED",
# then one line per failed test with what it said (its last three lines), and one per reason for
# skips. A package or a step of a nested host that failed without a failed test
# of its own (leak, crash, build, hang) is one failure, with the test that had
# begun and the first line of the crash; a step that has no tests is one itself.
# With --cut before the file the run was ended from outside: its last step has not
# failed, and a line "cut ..." says where it was.
set -euo pipefail
cut=0
[[ ${1:-} != --cut ]] || { cut=1; shift; }
tr -d '\r' <"${1:-/dev/stdin}" | awk -v cut="$cut" '
	function step(bad) {
		if (bad && !failed) {
			broke[++fail] = what
			said[fail] = (crash == "" ? "no test of it failed, it ended badly" : crash) (running == "" ? "" : " (in or after " running ")")
		}
		failed = ran = 0
		crash = running = ""
	}
	# A test says what it has to say before its result, and its subtests before it.
	function say(text, parts, n) {
		sub(/^ +/, "", text)
		n = split(says[at], parts, " // ")
		if (n > 2) says[at] = parts[n - 1] " // " parts[n]
		says[at] = says[at] (n ? " // " : "") text
	}
	function reason(text) {
		if (!(text in times)) order[++reasons] = text
		if (++times[text] <= 3) names[text] = names[text] (times[text] > 1 ? ", " : "") skipped
	}
	/^ *--- PASS: / { pass++; ran++ }
	/^ *--- FAIL: / { fail++; ran++; failed++; broke[fail] = $3; said[fail] = says[$3] }
	/^ *--- SKIP: / { skip++; ran++; skipped = $3; reason(why == "" ? "no reason printed" : why); why = "" }
	/^ +([a-z0-9_]+_test\.go:[0-9]+|FAIL): / { say(substr($0, 1, 400)) }
	/^=== (RUN|CONT|NAME) / { at = $3 }
	/^=== RUN/ { running = $3; delete says[$3] }
	/^--- / { at = "" }
	/^(panic|fatal error|SIG[A-Z]+|runtime):|^unexpected fault|^GP-NOTE |Out of memory|^(Segmentation fault|Killed|Bus error|Illegal instruction|Trace\/breakpoint trap)/ { if (crash == "") crash = substr($0, 1, 400) }
	/SKIP: needs/ { sub(/.*SKIP: /, ""); why = $0 }
	/^ok  \t/ { what = $2; step(0) }
	/^FAIL\t/ { what = $2; step(1) }
	/^GP-RUN / { failed = ran = 0; open = 1; what = $2; crash = running = "" }
	/^GP-DONE / {
		good = / rc=0( |$)/
		if (good && !ran) pass++
		step(!good)
		open = 0
	}
	END {
		if (open && !cut) step(1) # it never came to its end
		printf "%d %d %d\n", pass, fail, skip
		for (i = 1; i <= fail; i++) printf "failed %s: %s\n", broke[i], said[i] == "" ? "its part of the log says why" : said[i]
		if (cut) print "cut " (running == "" ? "the rest of it" : "the rest of it, from " running " on")
		for (i = 1; i <= reasons; i++) {
			n = times[order[i]]
			printf "skipped %d: %s: %s%s\n", n, order[i], names[order[i]], (n > 3 ? ", ..." : "")
		}
	}'
