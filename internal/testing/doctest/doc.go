// Package doctest runs the examples in the documents, programs, guests and
// sessions, and checks that the things which they name exist.
package doctest
