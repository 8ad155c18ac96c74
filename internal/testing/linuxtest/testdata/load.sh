# A load of processes, files, pipes, signals, modules, and of the kernel's own
# tracers, in rounds whose answers are always the same. Usage: load.sh ROUNDS [STAGE...]
# Lines: "LOAD STAGE ANSWER" for each stage of a round, "ROUND N" behind it.
cd /tmp || exit
tracing=/sys/kernel/tracing
sum() { sha256sum | cut -c1-16; }

processes() {
	n=0
	for i in 1 2 3 4 5 6 7 8; do
		(exit $i)
		n=$((n + $?))
		/bin/true && /bin/sh -c "exit $i"
		n=$((n + $?))
	done
	for i in 1 2 3; do (: >"job$i") & done
	wait
	echo $n $(ls job*) $(uname -s) $(id -u)
	rm job*
}
files() {
	mkdir -p d/e/f
	dd if=/dev/zero of=d/z bs=4k count=32 2>/dev/null
	for i in 1 2 3 4 5 6 7 8 9 10; do echo "line $i" >>d/lines; done
	cp d/lines d/e/copy
	ln -s ../lines d/e/soft
	ln d/lines d/e/hard
	mv d/e/copy d/e/f/moved
	chmod 600 d/e/f/moved
	truncate -s 100 d/lines
	tar -c -f d.tar d
	(find d | sort; cat d/e/soft; stat -c %a%s%h d/e/f/moved d/lines; tar -t -f d.tar | sort; sha256sum d/z) | sum
	rm -r d d.tar
}
pipes() {
	seq 1 400 | sort -r | tr 0-4 5-9 | uniq -c | sort | sum
	mkfifo fifo
	seq 1 300 >fifo &
	sum <fifo
	wait
	rm fifo
}
signals() {
	got=0
	trap 'got=$((got+1))' USR1
	for i in 1 2 3 4 5 6 7 8 9 10; do kill -USR1 $$; done
	trap - USR1
	{ # the shell may say that it was terminated, or not
		sleep 1000 &
		kill $!
		wait $!
		echo $got $?
	} 2>/dev/null
}
network() {
	seq 1 200 >net.in
	nc -l -p 77 <net.in >/dev/null &
	i=0
	while ! nc -w 5 127.0.0.1 77 </dev/null >net.out 2>/dev/null && [ $i -lt 50 ]; do i=$((i + 1)); done
	wait
	sum <net.out
	rm net.in net.out
}
modules() {
	[ -f /lib/modules/dummy.ko ] || { echo none; return; }
	for m in dummy loop; do insmod /lib/modules/$m.ko; done
	grep -cE '^(dummy|loop) ' /proc/modules
	for m in dummy loop; do rmmod $m; done
	grep -cE '^(dummy|loop) ' /proc/modules
}
ftrace() {
	[ -f $tracing/current_tracer ] || { echo none; return; }
	echo vfs_unlink vfs_mkdir >$tracing/set_ftrace_filter
	echo function >$tracing/current_tracer
	for i in 1 2 3; do mkdir own; rmdir own; : >own; rm own; done
	echo nop >$tracing/current_tracer
	echo >$tracing/set_ftrace_filter
	echo >$tracing/trace
	echo traced
}
# All functions: the kernel writes tens of thousands of places, and back.
ftrace_all() {
	echo function >$tracing/current_tracer && ls /
	echo nop >$tracing/current_tracer
	echo >$tracing/trace
}
kprobes() {
	[ -f $tracing/kprobe_events ] || { echo none; return; }
	echo 'p:own/unlink vfs_unlink' >$tracing/kprobe_events
	echo 'r:own/mkdir vfs_mkdir $retval' >>$tracing/kprobe_events
	echo 1 >$tracing/events/own/enable
	for i in 1 2 3 4 5; do mkdir own; rmdir own; : >own; rm own; done
	echo 0 >$tracing/events/own/enable
	awk "{print \$1, \$2, \$3}" $tracing/kprobe_profile
	echo >$tracing/kprobe_events
}
kernel() {
	echo tainted $(cat /proc/sys/kernel/tainted) words \
		$(dmesg | grep -cE 'WARNING:|BUG:|Oops|stack segment|general protection|RIP:|Call Trace|soft lockup|hung|ftrace (failed|bug)|jump_label')
}

rounds=$1
shift
[ $# -gt 0 ] || set -- processes files pipes signals network modules ftrace kprobes kernel
round=0
while [ "$round" -lt "$rounds" ]; do
	round=$((round + 1))
	for stage; do
		$stage >/tmp/answer 2>&1 # in this shell, which gets the signals
		echo "LOAD $stage" $(cat /tmp/answer)
	done
	echo "ROUND $round"
done
