#!/bin/busybox sh
# shellcheck shell=dash
# The first process of a nested host: loads KVM, runs what /t/plan says, prints
# one line "GP-END rc=N" and stops the machine. Every line of /t/plan is
#   NAME SECONDS COMMAND...
/bin/busybox --install -s /bin
chmod 755 / # it has the mode of the folder that it was packed from, which others may not pass
export PATH=/bin:/t/gdb HOME=/tmp TMPDIR=/tmp GUESTPROBE_REQUIRE_KVM=1 NO_COLOR=1 GUESTPROBE_ANSWER_TIME=5m
GUESTPROBE_NESTED=$(cat /emulator)
# Kernels and initrds for guests (scripts/linux/guests.sh).
export GUESTPROBE_NESTED GUESTPROBE_LINUX=/t/linux
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs -o size=1g tmp /tmp
ip link set lo up
while read -r m; do insmod "/lib/modules/$m.ko" || echo "GP-NOTE insmod $m failed"; done </etc/modules
# available: how many MiB of memory programs can have. /lowest is the least of the step so far.
available() { echo $(($(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo) / 1024)); }
available >/lowest
# A sign of life on the second serial port: a machine that hangs is told from
# one that works for long without a word (run.sh).
# It stays open for what run.sh sends there.
(
	exec 3<>/dev/ttyS1
	stty -F /dev/ttyS1 raw -echo
	while :; do
		echo . >&3
		mem=$(available)
		[ "$mem" -ge "$(cat /lowest)" ] || echo "$mem" >/lowest
		sleep 2
	done
) 2>/dev/null &
echo "GP-BOOTED uptime=$(cut -d' ' -f1 /proc/uptime) cpus=$(nproc) kernel=$(uname -r)"
if [ -c /dev/kvm ]; then rc=0; else echo "GP-NOTE no /dev/kvm"; rc=1; fi
while read -r name limit cmd; do
	case $name in ''|'#'*) continue ;; esac
	echo "GP-RUN $name"
	start=$(cut -d' ' -f1 /proc/uptime)
	(cd /t && timeout -s QUIT -k 20 "$limit" sh -c "$cmd") </dev/null
	r=$?
	[ $r = 0 ] || rc=1
	case $r in
	124|137) echo "GP-NOTE $name was cut off at its limit of $limit seconds; GUESTPROBE_NESTED_SCALE=N gives it N times that" ;;
	esac
	echo "GP-MEM $name at least $(cat /lowest) MiB of memory were free"
	available >/lowest
	echo "GP-DONE $name rc=$r from=$start to=$(cut -d' ' -f1 /proc/uptime)"
done </t/plan
echo "GP-END rc=$rc"
# stty waits until the serial port has sent all of it.
stty -F /dev/ttyS0 sane
# Bochs ends when these bytes arrive at port 0x8900; QEMU when the machine resets.
for c in S h u t d o w n; do printf %s $c | dd of=/dev/port bs=1 seek=35072 count=1 2>/dev/null; done
reboot -f
