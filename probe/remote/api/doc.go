// Package api has the messages of the daemon's socket: plain structs, record
// types and error codes, shared by the daemon, the client and the command
// line. Other programs use it with package probe/remote. The fields, as JSON has them,
// are stable within a major number of the API's level (docs/stability.md).
package api
