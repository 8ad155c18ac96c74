// Package builtin holds the built-in guest: a small x86-64 kernel with a user
// program, prebuilt from the sources in src.
package builtin
