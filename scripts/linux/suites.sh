#!/usr/bin/env bash
# Prints the folder with the kernel's own suites for a guest of that release: ftrace/
# with the shell scripts of tools/testing/selftests/ftrace, by the distribution's
# linux-source; and kprobe_example.ko, kretprobe_example.ko and livepatch-sample.ko of
# samples/, built with the headers of the release, unless no package has those. Made once,
# as any user. Usage: suites.sh RELEASE [SOURCE]   (default linux-source-6.1)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
release=${1:?usage: suites.sh RELEASE [SOURCE]} source=${2:-linux-source-6.1}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/guestprobe/kernels
out=$cache/samples,$source,$release
fail() { echo "suites for $release: $*" >&2; exit 1; }
if [[ -d $out ]]; then
	echo "$out"
	exit 0
fi
"$here/../packages.sh" tiny
package=$("$here/kernel.sh" "$source")
tmp=$(mktemp -d "$cache/unpack.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/src" "$tmp/out"
tar -x -C "$tmp/src" --strip-components=1 --wildcards -f "$package/usr/src/$source".tar.* '*/tools/testing/selftests/ftrace' '*/samples/kprobes' '*/samples/livepatch' ||
	fail "the source could not be unpacked; check free space (df -h $cache)"
cp -r "$tmp/src/tools/testing/selftests/ftrace" "$tmp/out/ftrace"
if apt-cache show "linux-headers-$release" >/dev/null 2>&1; then
	headers=$("$here/kernel.sh" "linux-headers-$release")
	# The packages name each other by the path of an installed one.
	cp -r "$headers/usr" "$tmp/usr"
	sed -i "s,/usr/src/,$tmp/usr/src/," "$tmp/usr/src/linux-headers-$release/Makefile"
	mv "$tmp/src/samples/livepatch/livepatch-sample.c" "$tmp/src/samples/kprobes/"
	echo 'obj-m := kprobe_example.o kretprobe_example.o livepatch-sample.o' >"$tmp/src/samples/kprobes/Makefile"
	make -s -C "$tmp/usr/src/linux-headers-$release" M="$tmp/src/samples/kprobes" CC=gcc modules >"$tmp/log" 2>&1 ||
		{ tail -n 20 "$tmp/log" >&2; fail "the samples could not be built (see above)"; }
	cp "$tmp"/src/samples/kprobes/*.ko "$tmp/out/"
else
	echo "suites for $release: no package has its headers, so that it is without the kernel's sample modules" >&2
fi
mv -T "$tmp/out" "$out"
echo "$out"
