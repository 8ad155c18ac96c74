// Package session attaches probes to a guest from a Go program: definitions with
// filters, eBPF programs, scripts, watches and overrides. The daemon guestprobed uses
// it too.
//
// A Session works on one engine. Attach takes any number of definitions and attaches all of them or none:
//
//	s := session.New(m, session.Options{}) // m is a *machine.Machine
//	defer s.Close()
//	a, err := s.Attach([]session.Spec{{Def: "p:reads vfs_read fd=%di", Filter: "fd > 2"}}, nil)
//
// Info and Stats of a Probe have its counts, Subscribe gives the events, ReadMap the maps of programs. Detach removes probes, and
// returns their final counts.
//
// A Session does not start, pause or reset the guest. A program that resets the guest does so in Session.Reset.
//
// All methods may be called from any goroutine, except a probe handler's, which must not wait: it runs on the thread of a vCPU.
// A change (Attach, Detach, SetEnabled, SetFilter, Reset) waits for the change before it; lookups, listings and counts never wait for a change.
//
// Errors are *Error, or lead to one with ErrorOf.
package session
