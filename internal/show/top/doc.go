// Package top is the display of 'guestprobe top': the rates of probes' and
// vCPUs' counts, sorted and filtered, and screens of them of any size. It does
// not depend on a terminal or a daemon.
package top
