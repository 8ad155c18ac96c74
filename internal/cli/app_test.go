package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

func TestExitStatus(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want int
	}{
		{errors.New("x"), 1},
		{&api.Error{Code: api.CodeBadDefinition}, 2},
		{fmt.Errorf("x: %w", &api.Error{Code: api.CodeProbeNotFound}), 4},
		{&api.Error{Code: "symbol_not_found"}, 4},
		{&api.Error{Code: "no_symbol_at_address"}, 4},
		{&api.Error{Code: api.CodeForbidden}, 5},
		{&api.Error{Code: "not_boundary", Errno: "EILSEQ"}, 1},
		// The engine's EACCES or EPERM does not mean that the user lacks a permission.
		{&api.Error{Code: "a_later_reason", Errno: "EACCES"}, 1},
		{fmt.Errorf("%w: %w", remote.ErrUnreachable, syscall.ECONNREFUSED), 3},
		{fmt.Errorf("%w: %w", remote.ErrUnreachable, syscall.EACCES), 5},
		{&fs.PathError{Op: "open", Err: syscall.EACCES}, 5},
		{fmt.Errorf("%w after 1s", errTimeout), 124},
		{fmt.Errorf("%w: 1 hit", errTooFew), 6},
		{context.Canceled, 1},
		{remote.ErrCutOff, 1},
	} {
		if got := judge(tc.err).Status; got != tc.want {
			t.Errorf("%v: status %d, want %d", tc.err, got, tc.want)
		}
	}
}

func TestParseArg(t *testing.T) {
	for in, want := range map[string]api.Hex{"0": 0, "-1": 1<<64 - 1, "0xffffffffffffffff": 1<<64 - 1, "-0x10": 1<<64 - 16, "0b11": 3} {
		if got, err := parseArg(in); err != nil || got != want {
			t.Errorf("%q = %v, %v; want %v", in, got, err, want)
		}
	}
	for _, bad := range []string{"", "-", "x", "0x10000000000000000", "-0x8000000000000001", "1.5", " 1"} {
		if got, err := parseArg(bad); err == nil {
			t.Errorf("%q was accepted as %v", bad, got)
		}
	}
}

// TestStatusesAreDocumented ties the help text to the constants.
func TestStatusesAreDocumented(t *testing.T) {
	for _, s := range []int{command.ExitOK, command.ExitFailed, command.ExitUsage, exitUnreachable, exitNotFound, exitPermission, exitTimeout} {
		if !strings.Contains(exitStatusHelp, fmt.Sprintf("\n  %d ", s)) {
			t.Errorf("status %d is not in the help text", s)
		}
	}
}
