# Makes the programs /tmp/new and /tmp/wrong out of /prog, and runs them. It says "RC" with an
# exit code behind each step, and then waits for a line: again runs /tmp/new once more, and
# anything else goes on.
rc() {
	echo "RC $?"
	read -r line
}
rc
cp /prog /tmp/new
cp /prog /tmp/wrong
line=again
while [ "$line" = again ]; do
	/tmp/new
	rc
done
for i in $(seq 20); do /tmp/new || echo "RC $?"; done
rc
for i in $(seq 20); do /tmp/wrong || echo "RC $?"; done
rc
echo "SUMS $(md5sum </prog | cut -c 1-32) $(md5sum </tmp/wrong | cut -c 1-32)"
rc
