// Package linuxtest boots Linux guests for tests, and has loads for them that give
// the same answers each time.
package linuxtest
