#!/usr/bin/env bash
# Makes each deliberate defect of internal/dev/torture/testdata/defects.txt in a copy
# of the tree, and lets made-up guests look for it. Ends with 1 if one is not found.
# Usage: defects.sh [GUESTS [FIRST LAST]]   guests for each defect (default 600), of
# the defects with these numbers.
set -euo pipefail
cd "$(dirname "$0")/.."
guests=${1:-600} first=${2:-1} last=${3:-1000}
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -co --exclude-standard -z | tar -c --null -T - | tar -x -C "$copy"
list=internal/dev/torture/testdata/defects.txt
n=0 missed=0
cat >"$copy/edit.awk" <<'AWK'
# Writes the file with the number-th defect made in it to its place.
/^defect / { i++ }
i == want && /^file / { file = substr($0, 6) }
i == want && /^< / { old = old (old == "" ? "" : "\n") substr($0, 3) }
i == want && /^> / { new = new (new == "" ? "" : "\n") substr($0, 3) }
END {
	while ((getline line <file) > 0) text = text line "\n"
	at = index(text, old)
	if (!at) { print "the text is not in " file >"/dev/stderr"; exit 1 }
	printf "%s", text >"original"
	printf "%s%s%s", substr(text, 1, at - 1), new, substr(text, at + length(old)) >file
	print file
}
AWK
while IFS= read -r name; do
	n=$((n + 1))
	((n >= first && n <= last)) || continue
	file=$(cd "$copy" && awk -v want="$n" -f edit.awk "$list")
	# Of a defect that few guests can show: flags of gpdev torture, and ten times as many guests.
	read -ra flags < <(awk -v want="$n" '/^defect / { i++ } i == want && sub(/^flags /, "") { f = $0 } END { print f }' "$list")
	((${#flags[@]} == 0)) || flags+=(--guests $((10 * guests)))
	if ! (cd "$copy" && go build -o defective ./cmd/gpdev) >"$copy/log" 2>&1; then
		result="DOES NOT BUILD" missed=$((missed + 1))
		cat "$copy/log"
	elif "$copy/defective" torture --seed 0 --guests "$guests" "${flags[@]}" >"$copy/log" 2>&1; then
		result="NOT FOUND" missed=$((missed + 1))
	else
		result=$(grep -aoEm1 'seed [0-9]+, [a-z]+' "$copy/log" || tail -n1 "$copy/log" | cut -c1-60)
	fi
	printf '%3d  %-80s %s\n' "$n" "$name" "$result"
	mv "$copy/original" "$copy/$file"
done < <(sed -n 's/^defect //p' "$list")
((missed == 0)) || { echo "$missed defects were not found"; exit 1; }
