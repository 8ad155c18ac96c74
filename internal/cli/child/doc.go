// Package child runs guestprobed as a process of ours.
package child
