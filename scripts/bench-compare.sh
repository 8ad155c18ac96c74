#!/usr/bin/env bash
# Compares benchmarks of this tree with those of another revision, by turns: the two programs run one after the other in each round, so that other load on the
# machine concerns both. Prints the medians of each figure and their ratio; figures that only one side has are left out.
# Usage: bench-compare.sh REVISION
#   PKGS    the packages (default: the hot paths)
#   BENCH   which benchmarks, a regular expression (default: all of them)
#   ROUNDS  how many turns (default 5)
#   BENCHTIME  of each benchmark (default 300ms)
set -euo pipefail
cd "$(dirname "$0")/.."
base=${1:-}
[[ -n $base ]] || { echo "bench-compare: name a revision: make bench-compare BASE=HEAD~1" >&2; exit 2; }
commit=$(git rev-parse --verify --quiet "$base^{commit}") || { echo "bench-compare: $base is no revision of this repository (git log)" >&2; exit 2; }
read -ra pkgs <<<"${PKGS:-./probe ./probe/bpf ./probe/event ./probe/evbpf ./internal/show/timeline}"
rounds=${ROUNDS:-5}
[[ $rounds =~ ^[1-9][0-9]*$ ]] || { echo "bench-compare: ROUNDS=$rounds: not a number of turns" >&2; exit 2; }
work=$PWD/build/bench-compare
rm -rf "$work"
mkdir -p "$work"
trap 'git worktree remove --force "$work/tree" 2>/dev/null || true' EXIT
git worktree add --quiet --detach "$work/tree" "$commit"

# build SIDE ROOT: a test program for each package that SIDE has.
build() {
	local p
	for p in "${pkgs[@]}"; do
		[[ -d $2/$p ]] || continue
		(cd "$2" && go test -c -o "$work/$1.${p//[.\/]/_}" "$p")
	done
}
echo "building $(git rev-parse --short "$commit") and this tree" >&2
build base "$work/tree"
build new "$PWD"

# turn SIDE ROOT: all benchmarks of SIDE once.
turn() {
	local p
	for p in "${pkgs[@]}"; do
		[[ -x $work/$1.${p//[.\/]/_} ]] || continue
		(cd "$2/$p" && "$work/$1.${p//[.\/]/_}" -test.run '^$' -test.bench "${BENCH:-.}" -test.benchtime "${BENCHTIME:-300ms}" -test.benchmem) |
			sed -n "s|^Benchmark|$1 $p |p" >>"$work/results"
	done
}
for ((i = 1; i <= rounds; i++)); do
	echo "turn $i of $rounds" >&2
	if ((i % 2)); then
		turn base "$work/tree"
		turn new "$PWD"
	else
		turn new "$PWD"
		turn base "$work/tree"
	fi
done

# A line of a result: side, package, benchmark, iterations, and pairs of a figure and its unit.
awk '
function median(text,   v, n, i, j, t) {
	n = split(text, v, " ")
	for (i = 2; i <= n; i++)
		for (j = i; j > 1 && v[j - 1] + 0 > v[j] + 0; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
	return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
}
{
	sub(/-[0-9]+$/, "", $3)
	for (i = 5; i < NF; i += 2) {
		k = $2 " " $3 " " $(i + 1)
		if (!(k in seen)) { seen[k] = 1; order[++n] = k }
		figures[$1, k] = figures[$1, k] " " $i
	}
}
END {
	printf "%-58s %-16s %12s %12s %8s\n", "BENCHMARK", "UNIT", "BASE", "NEW", "RATIO"
	for (i = 1; i <= n; i++) {
		k = order[i]
		if (figures["base", k] == "" || figures["new", k] == "") continue
		split(k, part, " ")
		b = median(figures["base", k]); c = median(figures["new", k])
		if (b == 0 && c == 0) continue
		printf "%-58s %-16s %12.6g %12.6g %8s\n", part[1] " " part[2], part[3], b, c, b == 0 ? "-" : sprintf("%.2f", c / b)
	}
}' "$work/results"
