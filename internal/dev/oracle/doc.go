// Package oracle runs user code natively, one instruction at a time under
// ptrace, and reports the result. Probed guests are compared with it. It does
// not depend on the code for probes.
package oracle
