#!/bin/sh
# Before its files go; not before others come in their place.
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl stop 'guestprobed@*.socket' 'guestprobed@*.service' || true
	fi
	;;
esac
