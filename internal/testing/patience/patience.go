// Package patience bounds the waiting times of tests.
package patience

import (
	"context"
	"testing"
	"time"
)

// lastWords is the part of a test's time that is kept for reporting a timeout,
// and for ending what the test has started.
const lastWords = 20

// Context returns a context for the waits of a test. It ends shortly before go
// test's -timeout, and with the test, before its cleanup functions run. Any
// other bound would be too short on some machine that is busy with something
// else.
func Context(tb testing.TB) context.Context {
	tb.Helper()
	limited, ok := tb.(interface{ Deadline() (time.Time, bool) })
	if !ok {
		return tb.Context() // of a benchmark
	}
	end, ok := limited.Deadline()
	if !ok {
		return tb.Context() // -timeout 0
	}
	ctx, cancel := context.WithDeadline(tb.Context(), end.Add(-time.Until(end)/lastWords))
	tb.Cleanup(cancel)
	return ctx
}
