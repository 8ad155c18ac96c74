// Package archtest holds only tests: of the import graph, of where unsafe may be
// used, and of the shape of packages and files.
package archtest
