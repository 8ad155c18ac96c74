// Package flow analyzes whole functions: which instructions the 5-byte jump of an
// optimized site may displace, by the kernel's rules and by ours.
package flow
