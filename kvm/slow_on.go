//go:build slowguest

package kvm

import "time"

// A slow host, for tests: a guest needs slowFactor times its time here. No test
// may depend on how much a guest gets done in a given time; with this build tag
// (make test-slow) such tests fail.
const (
	slowFactor = 10
	slowAtMost = 50 * time.Millisecond // per KVM_RUN, which may also have waited for an interrupt
)

func beginSlow() time.Time { return time.Now() }

// endSlow burns processor time, as a host does that emulates the guest's code.
func endSlow(began time.Time) {
	now := time.Now()
	for end := now.Add(min(slowAtMost, (slowFactor-1)*now.Sub(began))); now.Before(end); now = time.Now() {
	}
}
