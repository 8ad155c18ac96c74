#!/bin/sh
# Purged (dpkg), or removed (rpm, which knows no purge: configuration and state stay there).
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
case "$1" in
purge)
	rm -rf /etc/guestprobe /var/lib/guestprobe /run/guestprobed
	if getent passwd guestprobe >/dev/null && command -v userdel >/dev/null; then userdel guestprobe || true; fi
	if getent group guestprobe >/dev/null && command -v groupdel >/dev/null; then groupdel guestprobe || true; fi
	;;
esac
