// Package top is what 'guestprobe top' shows: the rates of what probes and vCPUs count, sorted and filtered, and the
// screens of them in any number of characters. It knows neither a terminal nor a daemon.
package top
