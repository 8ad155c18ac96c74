// Package remote is the client of a running guestprobed: Go programs attach probes
// with it, read events, run scripts and look at the guest. Package probe/remote/api has
// the types of requests and answers, with the unit of each field. To probe a guest
// without a daemon, use packages kvm/machine and probe/session.
//
// [New] makes a [Client] of a daemon's socket. Its methods are one request each; their
// order in the documentation is that of docs/openapi.yaml, which describes the routes.
//
// # Contexts and time limits
//
// A request ends when its context ends, and then returns the context's cause. Without a
// deadline it waits as long as the daemon needs: attaching to a large kernel can take
// seconds. The context of a [Stream] must live as long as the stream.
//
// # Errors
//
//   - [*api.Error]: the daemon has rejected the request, and has changed nothing. Code is
//     stable; errors.Is also finds the sentinel of the code and the errno.
//   - [ErrUnreachable]: no daemon answers, or it went away before its answer was complete.
//     In the second case the request may have been carried out.
//   - [ErrOldDaemon], [ErrProtocol]: another version, or not a guestprobed.
//   - [ErrCutOff]: a stream has ended without its end record.
//
// # Goroutines
//
// Any number of goroutines may use a Client at the same time. A Stream belongs to one
// goroutine.
//
// # Units
//
// Times are nanoseconds (fields and names in NS) or [time.Duration]. Addresses and
// register values are [api.Hex]. Sizes are bytes.
package remote
