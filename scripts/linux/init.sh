#!/bin/busybox sh
# shellcheck shell=dash
# The first process of a Linux guest: loads the modules of /etc/modules, runs
# what stands on the kernel's command line behind " -- ", or, where nothing does,
# a shell on the console, and switches the machine off. Its marks, each a line:
#   GP-BOOTED uptime=S cpus=N kernel=RELEASE
#   GP-DONE rc=N
/bin/busybox --install -s /bin
export PATH=/bin HOME=/root TERM=linux
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null # the kernel may have done it
mount -t debugfs debug /sys/kernel/debug 2>/dev/null
mount -t tracefs trace /sys/kernel/tracing 2>/dev/null
mount -t tmpfs tmp /tmp
exec </dev/console >/dev/console 2>&1
ip link set lo up 2>/dev/null
while read -r m; do insmod "/lib/modules/$m.ko" || echo "GP-NOTE insmod $m failed"; done </etc/modules
echo "GP-BOOTED uptime=$(cut -d' ' -f1 /proc/uptime) cpus=$(nproc) kernel=$(uname -r)"
command=$(sed -n 's/.* -- //p' /proc/cmdline)
cd /root || exit
if [ -n "$command" ]; then
	sh -c "$command"
else
	setsid cttyhack sh
fi
echo "GP-DONE rc=$?"
stty -F /dev/console sane 2>/dev/null # waits until the serial port has sent all of it
poweroff -f
