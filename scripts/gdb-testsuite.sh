#!/usr/bin/env bash
# Runs cases of GDB's own testsuite against guestprobed: each program of theirs is a guest, and Debian's gdb its
# debugger. Source, dejagnu and expect come from Debian, as any user, into a cache, and nothing of them is installed.
# Usage: gdb-testsuite.sh [CASE...]
#   CASE  as gdb.base/break; without one those that docs/testing.md has a table of
# The result is build/gdb-testsuite/gdb.sum. GUESTPROBED names another guestprobed than bin/guestprobed.
set -euo pipefail
cd "$(dirname "$0")/.."
export GUESTPROBED=${GUESTPROBED:-$PWD/bin/guestprobed}
here=$PWD/scripts/gdb-testsuite out=$PWD/build/gdb-testsuite
cache=${XDG_CACHE_HOME:-$HOME/.cache}/guestprobe/gdb-testsuite
fail() { echo "gdb-testsuite: $*" >&2; exit 1; }
for program in gdb gcc tclsh apt-get; do command -v "$program" >/dev/null || fail "$program is not installed"; done
[[ -x $GUESTPROBED ]] || fail "$GUESTPROBED is not there: 'make build' makes it"

if [[ ! -e $cache/whole ]]; then
	trap 'echo "gdb-testsuite: the source of gdb could not be had; check the network, then run the same command again" >&2' ERR
	rm -rf "$cache"
	mkdir -p "$cache"/{lists/partial,tools}
	mirror=$(apt-cache policy | sed -nE 's,.* (https?://[^ ]*/debian)/? .*,\1,p' | head -n 1)
	[[ -n $mirror ]] || fail "no mirror of Debian among the package sources (apt-cache policy)"
	. /etc/os-release
	echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $VERSION_CODENAME main" >"$cache/sources"
	apt=(apt-get -q -o "Dir::Etc::SourceList=$cache/sources" -o Dir::Etc::SourceParts=/nonexistent -o "Dir::State::lists=$cache/lists" -o "APT::Sandbox::User=$(id -un)")
	(
		set -e
		cd "$cache"
		"${apt[@]}" update >&2
		"${apt[@]}" source --download-only gdb >&2
		apt-get -q download dejagnu expect tcl-expect >&2
		tar xf gdb_*.orig.tar.?z --strip-components=1 --wildcards '*/gdb/testsuite/*' '*/gdb/contrib/*'
		for deb in *.deb; do dpkg -x "$deb" tools; done
		touch whole
	)
	trap - ERR
fi

cases=("$@")
((${#cases[@]})) || mapfile -t cases <"$here/cases"
rm -rf "$out"
parts=$(mktemp -d "${TMPDIR:-/tmp}/gdbts.XXXXXX") # short: sockets are there
trap 'rm -rf "$parts"' EXIT
cp "$here/guest.lds" "$parts"
mkdir -p "$out"
flags=(-ffreestanding -fno-builtin -fno-stack-protector -fno-pic -mcmodel=kernel -mno-red-zone -mno-sse -fcf-protection=none -O1 -w -c)
gcc "${flags[@]}" "$here/start.S" -o "$parts/start.o"
gcc "${flags[@]}" "$here/libc.c" -o "$parts/libc.o"
objcopy --discard-all "$parts/libc.o" # memory has no names
lib=$cache/tools/usr/lib/x86_64-linux-gnu
export GUESTPROBE_GDB_PARTS=$parts EXPECT=$cache/tools/usr/bin/expect
export LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PATH=$cache/tools/usr/bin:$PATH
export TCLLIBPATH="$lib $cache/tools/usr/share/tcltk/tcl8.6 $cache/tools/usr/lib/tcltk/x86_64-linux-gnu"
cat >"$out/site.exp" <<X
set target_triplet x86_64-unknown-linux-gnu
set host_triplet x86_64-unknown-linux-gnu
set build_triplet x86_64-unknown-linux-gnu
set srcdir $cache/gdb/testsuite
set objdir $out
set tool gdb
set GDB $(command -v gdb)
set INTERNAL_GDBFLAGS "-nw -nx -iex \"set height 0\" -iex \"set width 0\" -iex \"set debuginfod enabled off\""
lappend boards_dir $here
X
cd "$out"
bash "$cache/tools/usr/bin/runtest" --tool gdb --target_board guestprobe "${cases[@]/%/.exp}" >run.log 2>&1 || true
[[ -s gdb.sum ]] || fail "nothing ran: $(tail -n 3 run.log)"
# A line for each case.
awk '/^Running .*exp/ { n = split($2, p, "/"); c = p[n-1] "/" p[n]; order[++k] = c }
	/^[A-Z]+: / { r = $1; count[c, r]++ }
	END { for (i = 1; i <= k; i++) { c = order[i]; sub(/\.exp$/, "", c); printf "%-24s pass %d  fail %d  other %d\n", c, count[order[i], "PASS:"], count[order[i], "FAIL:"], count[order[i], "UNTESTED:"] + count[order[i], "UNRESOLVED:"] + count[order[i], "UNSUPPORTED:"] + count[order[i], "KFAIL:"] + count[order[i], "XFAIL:"] } }' gdb.sum
