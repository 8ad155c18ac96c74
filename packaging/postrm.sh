#!/bin/sh
# Purged (dpkg), or removed (rpm, which knows no purge: configuration and state stay there).
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
case "$1" in
purge)
	if [ -e /var/lib/guestprobe/.made-group-kvm ]; then made=kvm; else made=; fi
	rm -rf /etc/guestprobe /var/lib/guestprobe /run/guestprobed
	if getent passwd guestprobe >/dev/null && command -v userdel >/dev/null; then userdel guestprobe || true; fi
	if getent group guestprobe >/dev/null && command -v groupdel >/dev/null; then groupdel guestprobe || true; fi
	# Not where others have come to use it: members, the device, udev's own rule for that.
	if [ -n "$made" ] && getent group kvm | grep -q ':$' && [ "$(stat -c %G /dev/kvm 2>/dev/null)" != kvm ] &&
		[ ! -e /usr/lib/udev/rules.d/50-udev-default.rules ] && [ ! -e /lib/udev/rules.d/50-udev-default.rules ] && command -v groupdel >/dev/null; then
		groupdel kvm || true
	fi
	;;
esac
