// Package gdb speaks GDB's remote serial protocol, at whose other end a debugger sees a
// guest's vCPUs as threads of one process.
//
// A connection belongs to Serve, which reads one packet after the other, answers it from a
// table, and while the guest runs waits for a stop or for the debugger's interrupt. What the
// guest is comes through Target. All-stop mode only: a debugger that asks for non-stop is
// told that there is none.
//
// What arrives is bounded and checked before it is used; a packet that is not understood
// gets the empty answer, and one that is wrong an error, as the protocol has it (GDB manual,
// appendix E).
package gdb
