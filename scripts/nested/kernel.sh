#!/usr/bin/env bash
# Prints the folder that holds an unpacked Debian kernel for virtual machines
# (boot/vmlinuz-*, lib/modules/*). Downloads it once, into
# ${XDG_CACHE_HOME:-~/.cache}/guestprobe/nested. A half-finished download is
# never taken for a whole one, since a rename is the last step; a copy that has
# lost or changed files since is noticed by their checksums and made again.
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/guestprobe/nested
fail() { echo "nested: $*" >&2; exit 1; }
retry="then run the same command again"
mkdir -p "$cache" || fail "the cache $cache cannot be made; check its permissions and free space (df -h), or set XDG_CACHE_HOME, $retry"

# needed ROOT: the files of an unpacked kernel that a nested host is made of.
needed() {
	(cd "$1" && find boot/vmlinuz-* lib/modules \
		-name 'vmlinuz-*' -o -name 'irqbypass.ko*' -o -name 'kvm.ko*' -o -name 'kvm-intel.ko*' -o -name 'kvm-amd.ko*' -o -name 'ccp.ko*' | sort)
}
# whole ROOT: is it what was unpacked?
whole() { [[ -s $1/sums ]] && (cd "$1" && sha256sum --check --status sums); }

# What a killed run has left behind.
find "$cache" -maxdepth 1 -name 'unpack.*' -mmin +60 -exec rm -rf {} +
for d in "$cache"/linux-image-*; do
	[[ -d $d ]] || continue
	whole "$d" && { echo "$d"; exit 0; }
	echo "nested: the kernel in $d is not whole; getting it again" >&2
	rm -rf "$d"
done

# The metapackages of Debian and of Ubuntu, the smallest kernel first.
find_package() {
	local meta
	for meta in linux-image-cloud-amd64 linux-image-amd64 linux-image-virtual linux-image-generic; do
		apt-cache depends "$meta" 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9][^ ]*\).*/\1/p' | head -n 1
	done | head -n 1
}
pkg=$(find_package)
if [[ -z $pkg ]]; then
	echo "nested: reading the package lists (apt-get update)" >&2
	sudo=()
	[[ $(id -u) == 0 ]] || ! command -v sudo >/dev/null || sudo=(sudo)
	"${sudo[@]}" apt-get update -q >&2 || true
	pkg=$(find_package)
fi
[[ -n $pkg ]] || fail "no package linux-image-cloud-amd64 in the package lists; check the network and the package sources, $retry"
# Ubuntu keeps the modules in a package of their own.
all=("$pkg")
apt-cache show "${pkg/linux-image-/linux-modules-}" >/dev/null 2>&1 && all+=("${pkg/linux-image-/linux-modules-}")

tmp=$(mktemp -d "$cache/unpack.XXXXXX") || fail "no folder can be made in $cache; check free space (df -h $cache), $retry"
trap 'rm -rf "$tmp"' EXIT
chmod 755 "$tmp" # apt-get downloads as another user
echo "nested: downloading ${all[*]} into $cache" >&2
(cd "$tmp" && apt-get download -q "${all[@]}" >&2) ||
	fail "${all[*]} could not be downloaded; check the network and free space (df -h $cache), $retry"
for deb in "$tmp"/*.deb; do
	dpkg -x "$deb" "$tmp/root" || fail "$(basename "$deb") could not be unpacked; check free space (df -h $cache), $retry"
	rm "$deb"
done
needed "$tmp/root" >"$tmp/list"
for part in vmlinuz kvm-intel kvm-amd; do
	grep -q "$part" "$tmp/list" || fail "$pkg has no $part: it cannot be a nested host"
done
(cd "$tmp/root" && xargs sha256sum <"$tmp/list" >"$tmp/sums" && mv "$tmp/sums" sums) || fail "no space in $cache? (df -h), $retry"
# Another run may have been faster.
mv -T "$tmp/root" "$cache/$pkg" 2>/dev/null || whole "$cache/$pkg"
echo "$cache/$pkg"
