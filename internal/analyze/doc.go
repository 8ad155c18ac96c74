// Package analyze reads a program or a kernel from its file, and counts how much
// of it a jump could displace, without running it.
package analyze
