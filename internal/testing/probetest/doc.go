// Package probetest tests the probe engine: a fake guest that runs in plain Go,
// and the one conformance suite that runs on it and on real guests.
package probetest
