// Package service talks to the service manager that has started a daemon: the socket that it gives, and what it is told.
package service
