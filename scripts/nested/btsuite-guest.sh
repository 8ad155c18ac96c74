#!/bin/sh
# In the guest of btsuite.sh: executes each line of the console as a command. An error of the syntax ends a shell: then the next
# one goes on.
cd / || exit
stty -echo </dev/console
echo GP-SUITE
while :; do
	# shellcheck disable=SC2016 # the inner shell expands it
	sh -c 'while read -r line; do eval "$line"; done'
	echo "GP-SUITE-SHELL ended with $?"
done
