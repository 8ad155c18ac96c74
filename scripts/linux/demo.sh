#!/bin/sh
# Boots a Linux guest and probes it: what 'make demo-linux' shows. Runs where
# guestprobed can boot one. Usage: demo.sh GUEST (a folder of guests.sh's) BIN (of
# guestprobe and guestprobed) OBJECTS (of the programs in docs/examples)
set -eu
guest=$1 PATH=$2:$PATH objects=$3
tmp=$(mktemp -d)
export PATH GUESTPROBE_SOCKET="$tmp/gp.sock"
daemon=
# shellcheck disable=SC2317 # a trap calls it
stop() {
	[ -z "$daemon" ] || { kill "$daemon" && wait "$daemon"; } 2>/dev/null || true
	rm -rf "$tmp"
}
trap stop EXIT
trap 'exit 130' INT TERM
# show COMMAND...: says it, then does it.
show() {
	printf '\n$ guestprobe'
	for word; do case $word in *[!A-Za-z0-9./_:-]*) printf " '%s'" "$word" ;; *) printf ' %s' "$word" ;; esac; done
	echo
	guestprobe "$@"
}
# What the guest does all the time. Where its kernel's log is needed, it is on the console.
work='while :; do cat /etc/passwd >/dev/null; ls / | wc -l >/dev/null; done'
printf '$ guestprobed --kernel vmlinuz --initrd initrd --append "console=ttyS0 quiet" --memory 256M &\n'
mkfifo "$tmp/ready"
guestprobed --kernel "$guest/vmlinuz" --initrd "$guest/initrd" --append "console=ttyS0 quiet -- $work" --memory 256M \
	--ready-fd 3 --log-level warn 3>"$tmp/ready" &
daemon=$!
read -r _ <"$tmp/ready" || { echo "demo: the daemon did not start (see above)" >&2; exit 1; }
# The guest's first process says when it is there (init.sh).
until guestprobe guest console | grep '^GP-BOOTED'; do
	kill -0 "$daemon" 2>/dev/null && [ "$(guestprobe guest status --format json | grep -c '"running"')" != 0 ] || {
		guestprobe guest console
		echo "demo: the guest did not come up" >&2
		exit 1
	}
	sleep 1
done

show attach 'p:open do_sys_openat2 dfd filename=+0($arg2):string' 'p:clone kernel_clone' 'p:exit do_exit code' 'r:read vfs_read got=$retval'
show trace --timeout 30s -c 16
show list
show detach --all
# One open, with the stack that it comes by.
show trace --stack --timeout 30s -c 1 'p:opened do_sys_openat2 filename=+0($arg2):string'
# How long reads take, and who calls them.
show attach --program "$objects/latency.o"
sleep 5
show map dump nanoseconds
show stat
show detach --all
show attach --program "$objects/stacks.o"
sleep 2
show map dump stacks
show map dump calls
show detach --all
