// Package dies reads the entries of DWARF debug information (versions 2 to 5) in
// every form that compilers and tools write: references are resolved across units and
// files, so that split, deduplicated and link-time-optimized information reads like
// plain information.
//
// The package can be imported, but is not supported: it serves guest/debuginfo and
// changes without notice (docs/stability.md).
package dies
