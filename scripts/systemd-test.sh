#!/usr/bin/env bash
# guestprobed@.service and .socket under a real systemd, which systemd-nspawn boots in a new Debian root with the package in it:
# scripts/systemd/inside.sh is what is done there. Wants root and /dev/kvm.
#   systemd-test.sh [PACKAGE]   a package for Debian (default: the one of this commit, which is made)
#   GUESTPROBE_ROOT             a folder for the root, which stays and is used again
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "systemd-test: $*" >&2; exit 1; }
[[ $(id -u) == 0 ]] || fail "wants root"
[[ -c /dev/kvm ]] || fail "wants /dev/kvm"
# What is mounted here nobody else sees, and it goes with us, however we end.
[[ ${GUESTPROBE_OWN_MOUNTS:-} ]] || exec unshare --mount --propagation private env GUESTPROBE_OWN_MOUNTS=yes "$0" "$@"
command -v systemd-nspawn >/dev/null || apt-get install -y -q --no-install-recommends systemd-container >/dev/null

deb=${1:-}
if [[ -z $deb ]]; then
	rm -rf build/package
	scripts/package.sh deb
	deb=$(echo build/package/*.deb)
fi
work=$(mktemp -d)
root=${GUESTPROBE_ROOT:-$work/root}
name=guestprobe-test-$$
groups=()
# shellcheck disable=SC2317 # a trap calls it
cleanup() {
	local g
	for g in "${groups[@]}"; do
		echo $$ >"${g%/*}/cgroup.procs" || true
		find "$g" -depth -type d -exec rmdir {} \; || true
	done
	rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM
[[ -d $root/usr ]] || scripts/debianroot.sh "$root" systemd systemd-sysv dbus
cp "$deb" "$root/root/guestprobe.deb"
install -m 755 scripts/systemd/inside.sh "$root/root/inside.sh"
rm -f "$root/root/"{log,status}
cat >"$root/etc/systemd/system/inside.service" <<'UNIT'
[Unit]
Description=the test
After=multi-user.target
[Service]
Type=oneshot
StandardOutput=file:/root/log
StandardError=inherit
TimeoutStartSec=600
ExecStart=/root/inside.sh
ExecStopPost=/bin/systemctl --no-block poweroff
[Install]
WantedBy=default.target
UNIT
mkdir -p "$root/etc/systemd/system/default.target.wants"
ln -sf ../inside.service "$root/etc/systemd/system/default.target.wants/inside.service"
# The device has the mode that it has with systemd's own rules, whatever it has here.
mknod -m 666 "$work/kvm" c 10 232
# Landlock's system calls are for the daemon's jail.
how=(--register=no --system-call-filter='landlock_create_ruleset landlock_add_rule landlock_restrict_self')
if [[ ! -d /run/systemd/system ]]; then
	# No systemd is here to give the container a control group: it gets one by hand.
	how+=(--keep-unit)
	for g in /sys/fs/cgroup{,/systemd,/unified}; do
		[[ -e $g/cgroup.procs ]] || continue
		mkdir "$g/$name"
		groups+=("$g/$name")
		echo $$ >"$g/$name/cgroup.procs"
	done
fi
systemd-nspawn -q -D "$root" -M "$name" "${how[@]}" --bind="$work/kvm:/dev/kvm" --property='DeviceAllow=/dev/kvm rw' --console=pipe -b \
	</dev/null >"$work/console" 2>&1 || true
cat "$root/root/log" 2>/dev/null || { tail -n 30 "$work/console"; fail "the container has not come so far"; }
[[ $(cat "$root/root/status" 2>/dev/null) == passed ]] || fail "failed"
echo "systemd-test: all passed"
