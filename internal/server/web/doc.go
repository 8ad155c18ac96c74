// Package web is the page: its files, and the guard before them and before the handler of the API that it is
// given. It knows nothing of the daemon.
package web
