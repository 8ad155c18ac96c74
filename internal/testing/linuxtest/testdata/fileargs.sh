# Runs the programs of fileargs_test.go, which end with a fault, each after a line is read. It says "READY", and "RC" after each run.
echo READY
for prog in /whole /split; do
	read -r _
	$prog
	echo "RC $?"
done
echo END
read -r _
