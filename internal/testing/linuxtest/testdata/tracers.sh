# What the functions of TestTracers are called by: N times each. Usage: tracers.sh N
i=0
while [ $i -lt "$1" ]; do
	mkdir /tmp/gp-d
	ln -s a /tmp/gp-d/l
	readlink /tmp/gp-d/l >/dev/null
	mv /tmp/gp-d/l /tmp/gp-d/k
	rm /tmp/gp-d/k
	rmdir /tmp/gp-d
	i=$((i + 1))
done
