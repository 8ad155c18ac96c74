// Package gdb speaks GDB's remote serial protocol. The debugger at the other end
// sees a guest's vCPUs as threads of one process.
//
// A connection belongs to Serve, which reads one packet after the other and
// answers it from a table. While the guest runs, it waits for a stop or for the
// debugger's interrupt. It accesses the guest through Target. It supports only
// all-stop mode, and reports that in its answer to qSupported.
//
// All input is bounded and checked before it is used. As the protocol demands
// (GDB manual, appendix E), a packet that is not understood gets the empty
// answer, and a packet with a mistake gets an error.
package gdb
