// Package soak runs real daemons for minutes under random probing, kills what
// can be killed, and checks that nothing is wrong, lost or left behind.
package soak
