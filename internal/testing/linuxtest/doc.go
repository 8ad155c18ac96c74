// Package linuxtest boots Linux guests for tests, and has loads for them whose
// results are the same each time.
package linuxtest
