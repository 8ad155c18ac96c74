# The load of TestLinuxSaves: rounds of processes, files, pipes, signals, and of /prog, whose answers are always the same, until a line is typed.
# "ROUND N ANSWER" behind each, and at the end "END N SUM WORDS": SUM is made of all answers, WORDS is what the kernel has to say.
cd /tmp || exit
exec </dev/null
work() {
	n=0
	for i in 1 2; do
		(exit $i)
		n=$((n + $?))
	done
	/prog; /prog a; /prog b
	echo $n $? "$(id -u)"
	(: >job1) & a=$!
	(: >job2) &
	wait $a $!
	seq 1 100 | tr 0-4 5-9 | sha256sum
	mkdir d
	for i in 1 2 3; do echo "line $i" >>d/lines; done
	cp d/lines d/copy
	ln -s lines d/soft
	mv d/copy d/moved
	cat d/soft d/moved | sha256sum
	ls d job*
	rm -r d job*
	got=0
	trap 'got=$((got+1))' USR1
	for i in 1 2 3 4; do kill -USR1 $$; done
	trap - USR1
	echo $got
}
(read -r _ </dev/console; : >/tmp/stop) &
(while [ ! -f /tmp/stop ]; do busybox usleep 20000; done) &
(while [ ! -f /tmp/stop ]; do i=0; while [ $i -lt 20 ]; do [ -e /tmp/none$i ]; i=$((i + 1)); done; busybox usleep 3000; done) &
round=0 sum=0
while [ ! -f /tmp/stop ]; do
	work >/tmp/answer 2>&1
	a=$(sha256sum </tmp/answer | cut -c1-7)
	round=$((round + 1)) sum=$(((sum * 31 + 0x$a) % 1000003))
	echo "ROUND $round $a"
done
echo "END $round $sum $(dmesg | grep -cE 'WARNING:|BUG:|Oops|stack segment|general protection|RIP:|Call Trace|soft lockup|hung|ftrace (failed|bug)|jump_label')"
