#!/bin/sh
# What a package does behind its files; each of these may be missing in a container.
set -e
if command -v systemd-sysusers >/dev/null; then
	# Most systems have the group kvm from udev. One that has it from us loses it with us (postrm.sh).
	if ! getent group kvm >/dev/null; then
		mkdir -p /var/lib/guestprobe
		: >/var/lib/guestprobe/.made-group-kvm
	fi
	systemd-sysusers guestprobe.conf
fi
if command -v systemd-tmpfiles >/dev/null; then systemd-tmpfiles --create guestprobe.conf || true; fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
