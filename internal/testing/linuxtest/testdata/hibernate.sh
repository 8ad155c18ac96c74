# Run by each boot: the first one hibernates, the second one finds what that has put aside, and
# becomes it. The shell is in one probed function meanwhile, and sleep in another; others compute.
cat /sys/block/vda/dev >/sys/power/resume
mkswap /dev/vda
swapon /dev/vda
echo reboot >/sys/power/disk
echo 0 >/sys/power/image_size
sleep 100000 &
sleeps=$!
until grep -q 'sleep) S' /proc/$sleeps/stat; do :; done
compute() {
	i=0 s=$1
	while [ $i -lt 60 ]; do
		s=$(echo "$s $i" | sha256sum | cut -c1-16)
		i=$((i + 1))
	done
	echo "$s" >"/tmp/sum$1"
}
echo ready
read x </dev/console
for i in 1 2 3; do compute $i & done
sleep 0.3
echo disk >/sys/power/state
echo back $?
for i in 1 2 3 4 5; do cat /proc/version; done
kill $sleeps
wait $sleeps
echo end $?
wait
echo sums $(cat /tmp/sum1 /tmp/sum2 /tmp/sum3)
