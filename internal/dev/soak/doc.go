// Package soak runs real daemons for minutes under random probing, kills
// processes, and checks that nothing is wrong, lost or left over.
package soak
