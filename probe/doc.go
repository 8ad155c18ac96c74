// Package probe is the engine: it puts probes on guest instructions, runs
// their handlers when the guest arrives there, and lets the guest go on as if
// nothing had happened. It knows no KVM: it sees a Target.
package probe
