package cli

import (
	"context"
	"errors"
	"io/fs"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/client"
)

// Exit statuses. exitStatusHelp documents them.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitUnreachable = 3
	exitNotFound    = 4
	exitPermission  = 5
	exitTimeout     = 124 // as timeout(1)
)

const exitStatusHelp = `Exit status:
  0    done; also a trace that Ctrl-C has ended
  1    the operation failed
  2    bad usage, or a definition that does not compile
  3    no daemon answers on the socket
  4    no such symbol, probe or map
  5    no permission
  124  trace --timeout was over before the hits of --count were there`

// usageError is a command line that cannot be.
type usageError struct{ err error }

// Error is the cause's text.
func (e *usageError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *usageError) Unwrap() error { return e.err }

// errTimeout ends a trace whose time is over too early.
var errTimeout = errors.New("timeout")

// notFound are the codes of what the user named and the daemon does not have.
var notFound = map[api.Code]bool{
	api.CodeProbeNotFound: true, api.CodeMapNotFound: true, "symbol_not_found": true, "no_symbol_at_address": true,
}

// exitStatus maps an error to the exit status.
func exitStatus(err error) int {
	var wire *api.Error
	var usage *usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &wire):
		switch {
		case notFound[wire.Code]:
			return exitNotFound
		case wire.Code == api.CodeForbidden:
			return exitPermission
		case wire.Code == api.CodeBadDefinition:
			return exitUsage
		}
		return exitFailed
	case errors.Is(err, fs.ErrPermission):
		return exitPermission
	case errors.Is(err, client.ErrUnreachable):
		return exitUnreachable
	case errors.Is(err, errTimeout):
		return exitTimeout
	case errors.Is(err, context.Canceled):
		return exitFailed
	}
	return exitFailed
}
