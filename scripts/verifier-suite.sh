#!/usr/bin/env bash
# Compares our checker and verifier with what Linux's verifier says of its own cases: those of test_verifier.c and
# verifier/*.c below tools/testing/selftests/bpf of Debian's linux-source, which is fetched and not kept here. Prints how
# many agree, each difference with its reason, and how many are of things that programs of probes do not have; fails at a
# difference without a known reason. Usage: verifier-suite.sh [PACKAGE]
#   PACKAGE  linux-source-6.1, unless set: later ones have fewer of these cases
set -euo pipefail
cd "$(dirname "$0")/.."
package=${1:-linux-source-6.1}
work=build/verifier
for program in gcc tar xz; do command -v "$program" >/dev/null || { echo "verifier-suite: $program is not installed" >&2; exit 1; }; done
source=$(scripts/linux/kernel.sh "$package")
tree=$work/$package
if [[ ! -e $tree/whole ]]; then
	rm -rf "$tree"
	mkdir -p "$tree"
	tar -xf "$source/usr/src/$package.tar.xz" -C "$tree" --strip-components=1 --wildcards \
		"$package/tools/testing/selftests/bpf/*" "$package/tools/include/*" "$package/tools/arch/x86/include/*"
	touch "$tree/whole"
fi
tests=$(realpath "$tree")/tools/testing/selftests/bpf
sed -n '/^#define MAX_INSNS/,/^static struct bpf_test tests/p' "$tests/test_verifier.c" | sed '$d' >"$work/tests.inc"
for f in "$tests"/verifier/*.c; do echo "#include \"$f\""; done >"$work/cases.inc"
gcc -w -O0 -I"$work" -I"$tests" -I"$tests/../../../include/uapi" -I"$tests/../../../include" scripts/verifier/extract.c -o "$work/extract"
"$work/extract" >"$work/cases"
go test -count=1 -v -run 'TestLinuxVerifier$' ./probe/bpf -verifier-cases "$PWD/$work/cases"
