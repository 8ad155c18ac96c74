// Package service talks to the service manager that has started a daemon: it
// takes over the manager's socket, and notifies the manager of the daemon's
// state.
package service
