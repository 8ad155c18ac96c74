// Package oracle runs user code natively, one instruction at a time under
// ptrace, and says what it did: the truth that probed guests are held against.
// It knows nothing of probes.
package oracle
