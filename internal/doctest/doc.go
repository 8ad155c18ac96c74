// Package doctest runs what the documents show: programs, guests and sessions.
package doctest
