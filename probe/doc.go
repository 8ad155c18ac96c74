// Package probe is the engine: it puts probes on guest instructions, runs their
// handlers when the guest executes those instructions, and resumes the guest as if
// nothing had happened. It does not know KVM: it sees a Target.
package probe
