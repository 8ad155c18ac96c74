#!/usr/bin/env bash
# The packages, as a user gets them: made twice with the same bytes; installed by apt in a new Debian root, where the demo runs;
# purged, after which nothing of them is left. Wants root, and what debootstrap needs.
# The rpm package is installed and erased by rpm in that root too, where Debian's rpm can be had. GUESTPROBE_SUITE and
# GUESTPROBE_MIRROR are those of debianroot.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "package-test: $*" >&2; exit 1; }
[[ $(id -u) == 0 ]] || fail "wants root, for a chroot"
# What is mounted here nobody else sees, and it goes with us, however we end.
[[ ${GUESTPROBE_OWN_MOUNTS:-} ]] || exec unshare --mount --propagation private env GUESTPROBE_OWN_MOUNTS=yes "$0" "$@"

echo "package-test: the same bytes twice, in different folders"
work=$(mktemp -d)
root=$work/root
trap 'umount -q "$root/dev/kvm" "$root/proc" 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' INT TERM
git clone -q --no-local . "$work/again"
rm -rf build/package
scripts/package.sh deb rpm
IMAGE=no "$work/again/scripts/package.sh" deb rpm
for f in build/package/*.{deb,rpm}; do
	cmp "$f" "$work/again/$f" || fail "$f is not the same bytes when it is made again"
done

if command -v systemd-analyze >/dev/null; then
	echo "package-test: units"
	# The tree is no root of its own: only what is said about our units counts.
	said=$(systemd-analyze verify --man=no "$PWD"/build/package/tree/usr/lib/systemd/system/guestprobed@.{service,socket} 2>&1 | grep guestprobed | grep -v 'is not executable' || true)
	[[ -z $said ]] || fail "systemd-analyze: $said"
fi

echo "package-test: a new Debian"
scripts/debianroot.sh "$root"
mount -t proc proc "$root/proc"
if [[ -c /dev/kvm ]]; then
	touch "$root/dev/kvm"
	mount --bind /dev/kvm "$root/dev/kvm"
fi
listing() { (cd "$root" && find . -xdev \( -path ./proc -o -path ./tmp -o -path ./var/cache -o -path ./var/log -o -path ./var/lib/dpkg -o -path ./var/lib/apt -o -path ./var/lib/rpm -o -path ./root/.rpmdb \) -prune -o -print | LC_ALL=C sort); }
listing >"$work/before"
getent="cat $root/etc/passwd $root/etc/group"
$getent >"$work/users-before"
cp build/package/*.deb "$root/tmp/guestprobe.deb"
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive HOME=/root "$@"; }
inside apt-get install -y -q /tmp/guestprobe.deb >"$work/apt.log" 2>&1 || { cat "$work/apt.log"; fail "apt install"; }
inside guestprobe version 2>/dev/null
inside sh -c 'test -s /usr/share/man/man1/guestprobe-attach.1.gz && test -s /usr/share/bash-completion/completions/guestprobe && test -d /etc/guestprobe'
inside guestprobed --config /usr/share/doc/guestprobe/examples/example.toml --check-config
if [[ -c /dev/kvm ]]; then
	inside guestprobe demo >"$work/demo.log" 2>&1 || { tail "$work/demo.log"; fail "the demo"; }
	tail -n 3 "$work/demo.log"
else
	echo "package-test: no /dev/kvm: the demo is not run"
fi
echo 'vcpus = 1' >"$root/etc/guestprobe/mine.toml"
inside apt-get purge -y -q guestprobe >"$work/apt.log" 2>&1 || { cat "$work/apt.log"; fail "purge"; }
listing >"$work/after"
$getent >"$work/users-after"
diff "$work/before" "$work/after" || fail "purge leaves files"
diff "$work/users-before" "$work/users-after" || fail "purge leaves users"

echo "package-test: rpm"
inside apt-get install -y -q --no-install-recommends rpm >"$work/apt.log" 2>&1 || { tail "$work/apt.log"; fail "apt-get install rpm"; }
inside rpm --initdb
listing >"$work/before"
cp build/package/*.rpm "$root/tmp/guestprobe.rpm"
inside rpm -K --nosignature /tmp/guestprobe.rpm
[[ $(inside rpm -qp --qf '%{NAME} %{LICENSE} %{ARCH}' /tmp/guestprobe.rpm) == "guestprobe Apache-2.0 x86_64" ]] || fail "what rpm -qp says"
# Debian's rpm knows nothing of Debian's own packages: /bin/sh is missing to it.
inside rpm -i --nodeps /tmp/guestprobe.rpm
inside rpm -V --nodeps guestprobe || fail "rpm -V: what was installed is not what is in the package"
inside guestprobe version 2>/dev/null
inside rpm -e guestprobe
listing >"$work/after"
# Folders that other packages have on a machine of rpm's are nobody's here, and stay.
left=$(LC_ALL=C comm -13 "$work/before" "$work/after" | while read -r p; do [[ -d $root/$p && $p != *guestprobe* ]] || echo "$p"; done)
[[ -z $left ]] || fail "rpm -e leaves $left"
echo "package-test: all passed"
