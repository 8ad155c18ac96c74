package machine

import "context"

// typist is a payload whose guest has a console that reads.
type typist interface {
	// input passes b to the guest. Any goroutine.
	input(ctx context.Context, m *Machine, b []byte) (int, error)
}

// Input types b at the guest's console, and waits until there is room for all of
// it. It returns how much was accepted, and an error if that is not everything:
// ctx's error, ErrNoInput for a guest that does not read its console, or
// ErrNotRunnable for one that has ended or is reset. Any goroutine.
func (m *Machine) Input(ctx context.Context, b []byte) (int, error) {
	t, ok := m.payload().(typist)
	if !ok {
		return 0, ErrNoInput
	}
	if p := m.State().Phase; p == PhaseExited || p == PhaseCrashed || p == PhaseClosed {
		return 0, ErrNotRunnable
	}
	return t.input(ctx, m, b)
}
