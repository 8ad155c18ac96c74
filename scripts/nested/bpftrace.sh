#!/bin/busybox sh
# shellcheck shell=dash
# Makes a folder with bpftrace and its libraries one that chroot can be called with, in a
# nested host. Usage: bpftrace.sh FOLDER
set -e
cd "$1"
# Debian's packages have all below usr; old ones have the loader in lib64.
for d in bin lib lib64; do [ -e $d ] || ln -s usr/$d $d; done
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
mkdir -p proc sys dev tmp
for d in proc sys dev; do mount --bind /$d $d; done
mount -t tracefs trace sys/kernel/tracing
mount -t debugfs debug sys/kernel/debug
