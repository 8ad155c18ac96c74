#!/usr/bin/env bash
# Builds the kernel of a microVM from the distribution's linux-source, in the
# configuration of tiny.config, once, and prints its folder, as kernel.sh does:
# boot/vmlinuz-*, boot/System.map-*, and vmlinux. It has no names of its own. Below
# packed/ stands the same kernel in each packing that it can have (vmlinuz.xz, ...),
# for what unpacks kernels. Usage: tinykernel.sh [SOURCE]   (default linux-source-6.1)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source=${1:-linux-source-6.1}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/guestprobe/kernels
out=$cache/tiny,$source
fail() { echo "tinykernel: $*" >&2; exit 1; }
# The configuration that it was built in says whether it is this one.
if [[ -d $out ]] && cmp -s "$here/tiny.config" "$out/tiny.config"; then
	echo "$out"
	exit 0
fi
"$here/../packages.sh" tiny
package=$("$here/kernel.sh" "$source")
tmp=$(mktemp -d "$cache/unpack.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
echo "tinykernel: building it (minutes)" >&2
tar -x -C "$tmp" --strip-components=1 -f "$package/usr/src/$source".tar.* || fail "the source could not be unpacked; check free space (df -h $cache)"
# make without a word, but for errors. The same bytes each time.
build() {
	nice make -C "$tmp" -s "-j$(nproc)" O=o KBUILD_BUILD_TIMESTAMP=@0 KBUILD_BUILD_VERSION=1 KBUILD_BUILD_USER=u KBUILD_BUILD_HOST=h "$@" >"$tmp/log" 2>&1 ||
		{ tail -n 20 "$tmp/log" >&2; fail "make $* failed (see above)"; }
}
mkdir -p "$tmp/o" "$tmp/root"/{boot,packed}
for packing in XZ BZIP2 LZMA LZO LZ4 ZSTD GZIP; do
	echo "CONFIG_KERNEL_$packing=y" | cat "$here/tiny.config" - >"$tmp/all.config"
	build "KCONFIG_ALLCONFIG=$tmp/all.config" allnoconfig
	missing=$(grep -vxFf "$tmp/o/.config" "$tmp/all.config" | grep '^CONFIG' || true)
	[[ -z $missing ]] || fail "this source does not take $missing"
	build bzImage
	cp "$tmp/o/arch/x86/boot/bzImage" "$tmp/root/packed/vmlinuz.${packing,,}"
done
release=$(<"$tmp/o/include/config/kernel.release")
cp "$tmp/o/System.map" "$tmp/root/boot/System.map-$release"
cp "$tmp/o/vmlinux" "$tmp/root/vmlinux"
ln "$tmp/root/packed/vmlinuz.gzip" "$tmp/root/boot/vmlinuz-$release"
cp "$here/tiny.config" "$tmp/root/tiny.config"
rm -rf "$out"
mv -T "$tmp/root" "$out"
echo "$out"
