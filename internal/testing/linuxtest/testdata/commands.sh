# Runs each line that is typed at the console as a command of its own, and says
# "ANSWERED STATUS" behind it. It says "READY" when it listens.
stty -echo
echo READY
while read -r command; do
	sh -c "$command" </dev/null
	echo "ANSWERED $?"
done
