package kvmtest

import "os"

// fullEnv is the environment variable with which tests run at full size. CI sets
// it in a run of its own, because that takes too long for make test.
const fullEnv = "GUESTPROBE_FULL"

// ChooseSize returns the second value where tests run at full size, and the first one otherwise.
func ChooseSize[T any](usual, full T) T {
	if os.Getenv(fullEnv) == "1" {
		return full
	}
	return usual
}
