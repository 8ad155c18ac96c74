# Runs the program of usdt_test.go, which is /app and exits with the value of its semaphore. It says "READY", and "RC" with that value after
# each run, and then waits for a line; so does a program that says "WAIT".
sum() { echo "SUM $(md5sum </app)"; }
rc() {
	echo "RC $?"
	read -r _
}
sum
echo READY
read -r _
/app
rc
/app own
rc
for _ in 1 2 3; do
	/app
	rc
done
/app own
rc
/app
rc
for _ in 1 2 3 4; do
	/app
	rc
done
sum
echo END
read -r _
