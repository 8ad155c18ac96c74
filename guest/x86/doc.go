// Package x86 implements the parts of x86-64 that probes need: the length of
// instructions, their effect on control flow, how to move them, how to compute their
// effect on saved registers, and how to assemble them.
package x86
