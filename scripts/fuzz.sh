#!/usr/bin/env bash
# Runs every fuzz target of the module, or those that a pattern matches, for a time each. What it finds that raises coverage is
# kept in the package's testdata/fuzz, shortened by the engine and the shortest first, as much as fits; what fails is told, with
# the command that does it again. The inputs in testdata are run by every 'go test'. Status 1: something has failed.
#   fuzz.sh [REGEXP]        of "PACKAGE TARGET", as 'probe/.* FuzzDecode'
#   FUZZTIME                for each target (default 20s; a night's: 10m)
#   FUZZKEEP                so many new inputs of a target are kept at most (default 20; 0: none)
#   FUZZBYTES               and none that is larger (default 4096)
set -euo pipefail
cd "$(dirname "$0")/.."
pattern=${1:-.} keep=${FUZZKEEP:-20} most=${FUZZBYTES:-4096}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
module=$(go list -m)
cache=$(go env GOCACHE)/fuzz
failed=()

# blocks PROFILE: the blocks of a coverage profile that were executed.
blocks() { awk 'NR > 1 && $NF > 0 { print $1 }' "$1" | sort -u; }

# merge PACKAGE TARGET FOLDER: keeps what raises coverage beyond what is kept already.
merge() {
	local pkg=$1 target=$2 dir=$3 corpus name file n=0 size
	corpus=$dir/testdata/fuzz/$target
	[[ $keep != 0 && -d $cache/$pkg/$target ]] || return 0
	go test -c -cover -o "$work/test" "$pkg"
	(cd "$dir" && "$work/test" -test.run "^$target\$" -test.coverprofile "$work/profile" >/dev/null)
	blocks "$work/profile" >"$work/covered"
	while read -r size file; do
		((size <= most && n < keep)) || break
		name=$(basename "$file")
		[[ ! -e $corpus/$name ]] || continue
		mkdir -p "$corpus"
		cp "$file" "$corpus/$name"
		if (cd "$dir" && "$work/test" -test.run "^$target\$/^$name\$" -test.coverprofile "$work/profile" >/dev/null) &&
			blocks "$work/profile" | comm -23 - "$work/covered" >"$work/new" && [[ -s $work/new ]]; then
			sort -u -o "$work/covered" "$work/covered" "$work/new"
			n=$((n + 1))
		else
			rm "$corpus/$name"
		fi
	done < <(find "$cache/$pkg/$target" -type f -printf '%s %p\n' | sort -n)
	rmdir -p --ignore-fail-on-non-empty "$corpus" 2>/dev/null || true
	((n == 0)) || echo "   kept $n new inputs in ${corpus#"$PWD/"}"
}

while read -r pkg dir; do
	for target in $(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$dir"/*_test.go); do
		[[ "${pkg#"$module/"} $target" =~ $pattern ]] || continue
		echo "== ${pkg#"$module/"} $target"
		if go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-20s}" "$pkg" >"$work/log" 2>&1; then
			grep '^fuzz: elapsed' "$work/log" | tail -n 1
			merge "$pkg" "$target" "$dir"
		else
			cat "$work/log"
			again=$(sed -n 's/^ *go test -run=\(.*\)$/go test -run=\1 .\/'"${pkg//\//\\/}"'/p' "$work/log" | sed "s|./$module/|./|" | tail -n 1)
			failed+=("${pkg#"$module/"} $target: ${again:-see above}")
		fi
	done
done < <(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' ./... | grep .)
if ((${#failed[@]} > 0)); then
	printf 'fuzz: failed: %s\n' "${failed[@]}"
	exit 1
fi
echo "fuzz: all passed; git status shows what is new in testdata"
