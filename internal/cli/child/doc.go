// Package child runs guestprobed as a child process.
package child
