// Package patience bounds what a test waits for.
package patience

import (
	"context"
	"testing"
	"time"
)

// lastWords is the part of a test's time that is left for saying what it has
// waited for in vain, and for ending what it has started.
const lastWords = 20

// Of returns a context for whatever a test waits for. It ends shortly before go
// test's -timeout, and with the test, before its cleanup functions run. Any other
// bound would be too short on some machine that is busy with something else.
func Of(tb testing.TB) context.Context {
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
