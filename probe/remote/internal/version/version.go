// Package version holds what the linker records in the programs of a package. The Makefile's ldflags name its variables.
package version

var version, commit string

// LinkedVersion returns the version and the commit that the linker recorded. Both are empty in programs that were built without
// VERSION.
func LinkedVersion() (v, c string) { return version, commit }
