// Package x86 knows x86-64 instructions as a probe needs them: their length,
// what they do to control flow, how to move them, how to compute their effect
// on saved registers, and how to assemble them.
package x86
