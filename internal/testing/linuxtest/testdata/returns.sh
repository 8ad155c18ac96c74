# Runs /prog of filereturns_test.go in each of its ways, and says "RC" with the exit codes.
echo READY
read -r _
/prog; a=$?
/prog jumps jumps; b=$?
/prog forks forks forks; c=$?
/prog threads threads threads threads; d=$?
/prog signals signals signals signals signals; e=$?
/prog dies dies dies dies dies dies; f=$?
for i in $(seq 10); do /prog & done
wait
echo "RC $a $b $c $d $e $f"
read -r _
/prog
echo "RC $?"
read -r _
