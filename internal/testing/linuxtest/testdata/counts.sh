# Calls system calls while the kernel's own kprobes count them, and its function tracer
# writes them down. Usage: counts.sh FUNCTION...
# It says "READY", and begins when it has read a line. Each "cd" behind that is a mark for who
# counts along: between the two nothing but the load calls the functions. Then
# "COUNT FUNCTION HITS MISSED" and "TRACED FUNCTION CALLS" of each, and "COUNTED".
tracing=/sys/kernel/tracing
for f; do echo "p:own/$f $f"; done >$tracing/kprobe_events
echo "$@" >$tracing/set_ftrace_filter
echo READY
read -r _
echo function >$tracing/current_tracer
cd /tmp
echo 1 >$tracing/events/own/enable
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do
	mkdir a && mv a b && rmdir b
	: >c
	ln -s c d && readlink d >/dev/null && rm c d
	(kill -CONT $$ && exit 3) | cat
	(exit 1) & wait
done
echo 0 >$tracing/events/own/enable
echo 0 >$tracing/tracing_on
cd /tmp
awk '{print "COUNT", $1, $2, $3}' $tracing/kprobe_profile
awk '/<-/ { n[$(NF - 1)]++ } END { for (f in n) print "TRACED", f, n[f] }' $tracing/trace
echo COUNTED
