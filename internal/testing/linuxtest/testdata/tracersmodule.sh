# What the functions of TestTracersModule are called by: N times each. Usage: tracersmodule.sh N
i=0
while [ $i -lt "$1" ]; do
	ip link add gp type dummy || exit
	ip link del gp || exit
	i=$((i + 1))
done
