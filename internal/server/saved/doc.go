// Package saved stores clients' attachments to a guest in a form that outlives the
// daemon: in snapshots, and in the file of --state, which Store writes.
package saved
