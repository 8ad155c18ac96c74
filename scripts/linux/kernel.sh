#!/usr/bin/env bash
# Prints the folder of an unpacked distribution kernel: boot/vmlinuz-*,
# lib/modules/*. Downloads it once by apt, as any user.
# Usage: kernel.sh [[SUITE/]PACKAGE]
#   PACKAGE  an image or a metapackage of images (linux-image-cloud-amd64), debug
#            symbols (linux-image-...-dbg, below usr/lib/debug), source
#            (linux-source-6.1, below usr/src) or headers (linux-headers-..., below
#            usr/src and usr/lib), or bpftrace or gdb-minimal, with the libraries it
#            needs; without it
#            the smallest kernel for virtual machines that this distribution has
#   SUITE    another suite of the same distribution: trixie, sid
# The folder is ${XDG_CACHE_HOME:-~/.cache}/guestprobe/kernels/[SUITE,]PACKAGE;
# delete it for a newer version. A half-finished download is never taken for a
# whole one, since a rename is the last step; a copy that has lost or changed
# files since is noticed by their checksums and made again.
set -euo pipefail

want=${1:-}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/guestprobe/kernels
fail() { echo "kernel ${want:-for virtual machines}: $*" >&2; exit 1; }
retry="then run the same command again"
mkdir -p "$cache" || fail "the cache $cache cannot be made; check its permissions and free space (df -h), or set XDG_CACHE_HOME, $retry"
command -v apt-get >/dev/null || fail "this is no Debian machine (no apt-get)"

# The metapackages of Debian and of Ubuntu, the smallest kernel first.
names=(linux-image-cloud-amd64 linux-image-amd64 linux-image-virtual linux-image-generic) suite=
if [[ -n $want ]]; then
	names=("${want##*/}")
	[[ $want != */* ]] || suite=${want%%/*}
fi
# What stands behind a name comes from a user: no option, no path.
[[ $suite${names[*]} =~ ^[a-z0-9][a-z0-9.+~\ -]*$ ]] || fail "is no [SUITE/]PACKAGE"
folder() { echo "$cache/${suite:+$suite,}$1"; }

# whole ROOT: is it what was unpacked?
whole() { [[ -s $1/sums ]] && (cd "$1" && sha256sum --check --status sums); }
# What a killed run has left behind.
find "$cache" -maxdepth 1 -name 'unpack.*' -mmin +60 -exec rm -rf {} +
for name in "${names[@]}"; do
	d=$(folder "$name")
	[[ -d $d ]] || continue
	whole "$d" && { echo "$d"; exit 0; }
	echo "kernel: $d is not whole; getting it again" >&2
	rm -rf "$d"
done

# Another suite has package lists of its own, below the cache.
apt=() sudo=()
[[ $(id -u) == 0 ]] || ! command -v sudo >/dev/null || sudo=(sudo)
if [[ -n $suite ]]; then
	sudo=()
	root=$cache/apt-$suite
	mirror=$(apt-cache policy | sed -nE 's,.* (https?://[^ ]*/(debian|ubuntu))/? .*,\1,p' | head -n 1)
	[[ -n $mirror ]] || fail "no mirror of Debian or Ubuntu among the package sources (apt-cache policy)"
	mkdir -p "$root"/{etc/preferences.d,state/lists/partial,cache/archives/partial} || fail "no space in $cache? (df -h), $retry"
	echo "deb [signed-by=/usr/share/keyrings/${mirror##*/}-archive-keyring.gpg] $mirror $suite main" >"$root/etc/sources.list"
	: >"$root/state/status"
	apt=(-o "Dir::Etc=$root/etc" -o Dir::Etc::Parts=/nonexistent -o "Dir::State=$root/state" -o "Dir::State::status=$root/state/status"
		-o "Dir::Cache=$root/cache" -o Acquire::Languages=none -o "APT::Sandbox::User=$(id -un)")
fi

# packages NAME: what has to be downloaded for it. Ubuntu, and Debian since 14,
# keep modules and image in packages of their own.
packages() {
	local parts='image|binary|modules' needed=
	case $1 in
	linux-source-* | *-dbg) apt-cache "${apt[@]}" show "$1" 2>/dev/null | sed -n 's/^Package: //p' | head -n 1; return ;;
	linux-headers-*) parts='headers|kbuild' ;;
	bpftrace | gdb-minimal) needed='[a-z0-9].*' ;;
	esac
	apt-cache "${apt[@]}" depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances "$1" 2>/dev/null |
		grep -oE "^${needed:-linux-($parts)-[0-9].*}" | sort -u
}
find_packages() {
	all=()
	for name in "${names[@]}"; do
		mapfile -t all < <(packages "$name" || true)
		((${#all[@]} == 0)) || return 0
	done
	return 1
}
find_packages || {
	echo "kernel: reading the package lists (apt-get update)" >&2
	"${sudo[@]}" apt-get "${apt[@]}" update -q >&2 || true
	find_packages || fail "no package of that name in the package lists; check it (apt-cache search linux-image), the network and the package sources, $retry"
}

tmp=$(mktemp -d "$cache/unpack.XXXXXX") || fail "no folder can be made in $cache; check free space (df -h $cache), $retry"
trap 'rm -rf "$tmp"' EXIT
chmod 755 "$tmp" # apt-get downloads as another user
echo "kernel: downloading ${all[*]} into $cache" >&2
(cd "$tmp" && apt-get "${apt[@]}" download -q "${all[@]}" >&2) ||
	fail "${all[*]} could not be downloaded; check the network and free space (df -h $cache), $retry"
for deb in "$tmp"/*.deb; do
	dpkg -x "$deb" "$tmp/root" || fail "$(basename "$deb") could not be unpacked; check free space (df -h $cache), $retry"
	rm "$deb"
done
cd "$tmp/root"
# Where /lib is a link to usr/lib, and where the image stands beside its modules
# (Debian 14), it is found at the old places all the same.
[[ -e lib || ! -d usr/lib/modules ]] || ln -s usr/lib lib
for file in usr/lib/modules/*/vmlinuz; do
	[[ -f $file ]] || continue
	mkdir -p boot && ln "$file" "boot/vmlinuz-$(basename "$(dirname "$file")")"
done
(find boot lib/modules/ usr/lib/debug usr/lib/linux-kbuild-* usr/src usr/bin/bpftrace* usr/bin/gdb lib/*-linux-gnu* usr/lib/*-linux-gnu* -type f -print0 2>/dev/null || true) | sort -z | xargs -0r sha256sum >"$tmp/sums"
[[ -s $tmp/sums ]] || fail "${all[*]} holds no kernel"
mv "$tmp/sums" sums || fail "no space in $cache? (df -h), $retry"
# Another run may have been faster.
d=$(folder "$name")
mv -T "$tmp/root" "$d" 2>/dev/null || whole "$d"
echo "$d"
