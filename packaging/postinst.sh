#!/bin/sh
# What a package does behind its files; each of these may be missing in a container.
set -e
if command -v systemd-sysusers >/dev/null; then systemd-sysusers guestprobe.conf; fi
if command -v systemd-tmpfiles >/dev/null; then systemd-tmpfiles --create guestprobe.conf || true; fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
