# Runs the program of files_test.go, which is /prog, in each way that a process can have its
# code in memory. It says "READY", and "RC" with an exit code behind each step, and then waits for
# a line; so do programs that say "WAIT".
ln -s ../prog /tmp/link
cp /prog /tmp/copy
sum() { echo "SUM $(md5sum </prog)"; }
rc() {
	echo "RC $?"
	read -r _
}
sum
echo READY
read -r _
/prog p
rc
for i in $(seq 20); do /prog || echo "RC $?"; done
rc
/tmp/copy & /prog & /tmp/copy
rc
wait
/prog after arm
rc
/prog a b c
rc
/prog
rc
sum
echo END
read -r _
