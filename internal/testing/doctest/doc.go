// Package doctest runs what the documents show, programs, guests and sessions, and looks for what they name.
package doctest
