// Package web is the page: its files, and the access control for them and for
// the API's handler, which it is given. It does not depend on the daemon.
package web
