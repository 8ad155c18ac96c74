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

# The cases of newer kernels are programs in C and assembly, with what Linux says of them in tags (progs/verifier_*.c).
for program in clang-19 bpftool python3; do
	command -v "$program" >/dev/null || { echo "verifier-suite: $program is not installed: the cases of progs/verifier_*.c are left out" >&2; exit 0; }
done
package=linux-source-6.12 progs=$PWD/$work/progs
source=$(scripts/linux/kernel.sh "$package")
tree=$work/$package
if [[ ! -e $tree/whole ]]; then
	rm -rf "$tree"
	mkdir -p "$tree"
	tar -xf "$source/usr/src/$package.tar.xz" -C "$tree" --strip-components=1 --wildcards "$package/tools/testing/selftests/bpf/*" "$package/tools/include/*" \
		"$package/tools/lib/bpf/*" "$package/scripts/bpf_doc.py" "$package/include/uapi/linux/bpf.h"
	touch "$tree/whole"
fi
rm -rf "$progs"
mkdir -p "$progs/include/bpf"
cp "$tree"/tools/lib/bpf/*.h "$progs/include/bpf/"
"$tree/scripts/bpf_doc.py" --header --file "$tree/tools/include/uapi/linux/bpf.h" >"$progs/include/bpf/bpf_helper_defs.h"
bpftool btf dump file "${GUESTPROBE_SUITE_BTF:-/sys/kernel/btf/vmlinux}" format c >"$progs/include/vmlinux.h"
tests=$tree/tools/testing/selftests/bpf
for f in "$tests"/progs/verifier_*.c; do
	clang-19 -g -O2 -target bpf -mcpu=v4 -D__TARGET_ARCH_x86 -I"$progs/include" -I"$tests/progs" -I"$tests" -I"$tree/tools/include/uapi" -I/usr/include/x86_64-linux-gnu -w \
		-c "$f" -o "$progs/$(basename "$f" .c).o" 2>/dev/null || echo "verifier-suite: $(basename "$f") does not compile here" >&2
done
go test -count=1 -v -run 'TestLinuxVerifierPrograms$' ./probe/bpf -verifier-objects "$progs"
