#!/usr/bin/env bash
# What systemd-test.sh does under systemd: the package's units, from its installation to its purge.
set -uo pipefail
export DEBIAN_FRONTEND=noninteractive
show() { echo "-- $*"; }
fail() {
	echo "FAILED: $*"
	systemctl --no-pager -l status 'guestprobed@*'
	journalctl --no-pager -o cat -u 'guestprobed@*' | tail -n 60
	exit 1
}
# until COMMAND...: waits for it to be true.
until_() {
	local i
	for ((i = 0; i < 1200; i++)); do
		"$@" >/dev/null 2>&1 && return
		sleep 0.1
	done
	fail "this never became true: $*"
}
wants() { [[ $2 == "$1" ]] || fail "$3: $2, want $1"; } # wants VALUE GOT WHAT
of() { systemctl show -P "$2" "guestprobed@$1.service"; } # of NAME PROPERTY
status_is() { [[ $(of "$1" StatusText) == "$2" ]]; }
state_is() { [[ $(of "$1" ActiveState) == "$2" ]]; }
gp() { local s=/run/guestprobed/$1.sock; shift; guestprobe --socket "$s" "$@"; }
journal_has() { journalctl --no-pager -o cat -u "guestprobed@$1" | grep -qE -- "$2"; }
new_pid() { [[ $(of "$1" MainPID) != 0 && $(of "$1" MainPID) != "$2" && $(of "$1" ActiveState) == active ]]; }
listing() { find / -xdev \( -path /proc -o -path /tmp -o -path /root -o -path /var/cache -o -path /var/log -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/lib/systemd \) -prune -o -print | sort; }

show "the package"
listing >/root/before
cat /etc/passwd /etc/group >/root/users-before
apt-get install -y -q /root/guestprobe.deb >/root/apt.log 2>&1 || { cat /root/apt.log; fail "apt-get install"; }
systemd-analyze verify --man=no guestprobed@web.service guestprobed@web.socket || fail "systemd-analyze verify"
wants "guestprobe guestprobe 755" "$(stat -c '%U %G %a' /run/guestprobed)" "/run/guestprobed"
id -nG guestprobe | grep -qw kvm || fail "the user guestprobe is not of the group kvm"

show "a service"
cat >/etc/guestprobe/web.toml <<'TOML'
vcpus = 1
probe = ["p:start do_fork"]
TOML
systemctl start guestprobed@web || fail "start"
wants active "$(of web ActiveState)" "behind systemctl start"
until_ status_is web "guest running, 1 probe"
for i in 1 2 3 4 5 6 7 8 9 10 11; do gp web attach "p:mine$i vfs_read" >/dev/null || fail "attach"; done
until_ status_is web "guest running, 12 probes"
systemctl --no-pager status guestprobed@web | grep -E 'Status:|Main PID' || fail "status"
wants guestprobe "$(stat -c %U "/proc/$(of web MainPID)")" "the daemon's user"
gp web run --detach reads -e 'kprobe:vfs_read { @ = count(); }' >/dev/null || fail "run --detach"
until_ status_is web "guest running, 13 probes, 1 script"
gp web guest status | grep -E '^(jail|missing) ' || fail "no word about the jail in the status"
[[ $(gp web guest status --format json) == *'"seccomp": true'* ]] || fail "the daemon is not confined"
setpriv --reuid=nobody --regid=nogroup --clear-groups guestprobe --socket /run/guestprobed/web.sock list 2>/root/err
wants 5 $? "the exit status of a stranger's list"
setpriv --reuid=nobody --regid=guestprobe --clear-groups guestprobe --socket /run/guestprobed/web.sock list -q | grep -q mine1 || fail "list of somebody of the group"

show "reload"
pid=$(of web MainPID)
sed -i '1i log-level = "debug"\nmax-connections = 100' /etc/guestprobe/web.toml
systemctl reload guestprobed@web || fail "reload"
until_ journal_has web 'msg=reloaded name=log-level was=info is=debug'
until_ journal_has web 'msg=reloaded name=max-connections was=512 is=100'
until_ state_is web active
wants "$pid" "$(of web MainPID)" "the process behind a reload"
sed -i '1i vcpu = 1' /etc/guestprobe/web.toml
systemctl reload guestprobed@web
until_ journal_has web 'level=ERROR msg="the configuration is not reloaded.*web.toml:1: no option .*vcpu.*did you mean vcpus'
until_ state_is web active
sed -i 1d /etc/guestprobe/web.toml

show "restart: what clients attached is there again"
systemctl restart guestprobed@web || fail "restart"
until_ status_is web "guest running, 13 probes, 1 script"
wants 11 "$(gp web list --wide | grep -c '\[RESTORED\] .*kprobes/mine')" "restored probes"
gp web list --wide | grep -q '\[START\] .*kprobes/start' || fail "the probe of the configuration"
gp web scripts | grep -q '^reads  *running, restored' || fail "the script"
journal_has web 'msg="what clients had attached is restored"' || fail "no word about it in the journal"

show "watchdog: a daemon that is stopped is started again"
mkdir -p /etc/systemd/system/guestprobed@web.service.d
printf '[Service]\nWatchdogSec=3\nTimeoutAbortSec=5\n' >/etc/systemd/system/guestprobed@web.service.d/dog.conf
systemctl daemon-reload
systemctl restart guestprobed@web || fail "restart"
until_ status_is web "guest running, 13 probes, 1 script"
pid=$(of web MainPID)
kill -STOP "$pid"
until_ new_pid web "$pid"
until_ status_is web "guest running, 13 probes, 1 script"
journalctl --no-pager -o cat -u guestprobed@web | grep -E "Watchdog timeout|result 'watchdog'" || fail "no word about it in the journal"

show "killed: it is started again, with what clients attached"
pid=$(of web MainPID)
kill -KILL "$pid"
until_ new_pid web "$pid"
until_ status_is web "guest running, 13 probes, 1 script"

show "a socket: the guest starts when somebody comes"
echo 'vcpus = 1' >/etc/guestprobe/spare.toml
systemctl start guestprobed@spare.socket || fail "start of the socket"
guestprobe ps || fail "ps"
wants "spare waits" "$(guestprobe ps --format '{{.Name}} {{.State}}' | grep spare)" "ps before anybody came"
wants inactive "$(of spare ActiveState)" "the service before anybody came"
gp spare attach 'p:mine vfs_read' >/dev/null || fail "attach"
wants active "$(of spare ActiveState)" "the service when somebody came"
until_ status_is spare "guest running, 1 probe"
guestprobe ps || fail "ps"
wants "$(of spare MainPID) running" "$(guestprobe ps --format '{{.PID}} {{.Guest}} {{.Name}}' | sed -n 's/ spare$//p')" "ps of the daemon"
guestprobe --all list --format '{{.Daemon}} {{.Name}}' | sort | sed -n '1p;$p'
systemctl stop guestprobed@spare.service 2>/root/err || fail "stop"
wants active "$(systemctl is-active guestprobed@spare.socket)" "the socket behind the service's end"
wants "spare waits" "$(guestprobe ps --format '{{.Name}} {{.State}}' | grep spare)" "ps behind the service's end"
gp spare list --wide | grep -q '\[RESTORED\] .*kprobes/mine' || fail "the second start by the socket"
systemctl stop guestprobed@spare.socket guestprobed@spare.service || fail "stop"
[[ ! -e /run/guestprobed/spare.sock && ! -e /run/guestprobed/spare.sock.lock ]] || fail "the socket is left: $(ls /run/guestprobed)"

show "a configuration that is wrong"
echo 'vcpu = 1' >/etc/guestprobe/bad.toml
systemctl start guestprobed@bad 2>/root/err && fail "it starts"
until_ state_is bad failed
journal_has bad 'bad.toml:1: no option "vcpu": did you mean vcpus' || fail "no word about it in the journal"
echo "starts: $(journalctl --no-pager -o cat -u guestprobed@bad | grep -c 'no option "vcpu"')"

show "purge"
systemctl stop guestprobed@web || fail "stop"
journal_has web 'msg=stopp' || fail "no word about its end in the journal"
systemctl start guestprobed@web || fail "start"
rm -r /etc/systemd/system/guestprobed@web.service.d
apt-get purge -y -q guestprobe >/root/apt.log 2>&1 || { cat /root/apt.log; fail "purge"; }
grep -qx guestprobed /proc/[0-9]*/comm 2>/dev/null && fail "a daemon is left"
listing >/root/after
cat /etc/passwd /etc/group >/root/users-after
diff /root/before /root/after || fail "purge leaves files"
diff /root/users-before /root/users-after || fail "purge leaves users"
echo passed >/root/status
