// Package files opens files that users name, which may be anything that a path leads to.
package files
