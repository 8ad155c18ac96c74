#!/bin/busybox sh
# shellcheck shell=dash
# Runs bpftrace's runtime tests that need a guest in a Linux guest of a guestprobed, which has upstream's test programs.
# Usage, in a nested host: btsuite.sh FOLDER, with vmlinuz and initrd. /t/suite has the checkout's tests, the programs, and
# what the guest gets besides (scripts/bpftrace-suite.sh).
set -u
socket=/tmp/btsuite.sock
cat "$1/initrd" suite/guest.cpio.gz >/tmp/initrd
[ -z "$(ls "$1/debug" 2>/dev/null)" ] || set -- "$1" --debug "$1/debug"
folder=$1
shift
./guestprobed --socket $socket --kernel "$folder/vmlinuz" --initrd /tmp/initrd --append 'console=ttyS0 quiet panic=-1 -- /suite.sh' --memory 384M "$@" >/tmp/btsuite.log 2>&1 &
pid=$!
until ./guestprobe -s $socket guest console 2>/dev/null | grep -q GP-SUITE; do
	kill -0 "$pid" || { cat /tmp/btsuite.log; echo "btsuite.sh: the daemon has ended"; exit 1; }
	sleep 1
done
./guestprobe -s $socket guest status
./gpdev btsuite suite/checkout --rules suite/rules --btf /sys/kernel/btf/vmlinux --programs suite/testprogs --only runtime \
	--guest $socket --guestprobe ./guestprobe --slow "$(cat suite/slow)" --match "$(cat suite/match)" --differences /tmp/differences
rc=$?
echo GP-DIFFERENCES
cat /tmp/differences
echo GP-DIFFERENCES-END
./guestprobe -s $socket guest status | sed -n 2p
./guestprobe -s $socket guest console | tail -n 40
kill "$pid"
wait "$pid" || echo "btsuite.sh: the daemon's exit status is $?"
tail -n 20 /tmp/btsuite.log
exit $rc
