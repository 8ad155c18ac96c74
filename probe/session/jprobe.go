package session

import (
	"fmt"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
)

// withArgs returns def with the function's first n arguments after its own,
// except those that it has already.
func withArgs(def *event.Def, n int, scope event.Scope) (*event.Def, error) {
	var more strings.Builder
	names := make([]string, 0, len(def.Args)+n)
	for _, a := range def.Args {
		names = append(names, a.Name)
	}
	for i := 1; i <= n; i++ {
		if slices.ContainsFunc(def.Args, func(a event.Arg) bool { return a.Fetch == event.FuncArg{N: i} }) {
			continue
		}
		name := fmt.Sprintf("arg%d", i)
		for slices.Contains(names, name) {
			name = "_" + name
		}
		names = append(names, name)
		fmt.Fprintf(&more, " %s=$arg%d", name, i)
	}
	if more.Len() == 0 {
		return def, nil
	}
	full, err := event.ParseIn(def.String()+more.String(), scope)
	if err != nil {
		return nil, err
	}
	full.AutoName = def.AutoName
	return full, nil
}

// handleJprobe makes a the jprobe of its definition. Its records are from the
// function's entry, before the mirror.
func (st *Session) handleJprobe(a *Probe, where probe.Kprobe) {
	j := &probe.Jprobe{
		Kprobe: where, Mirror: a.spec.Mirror, End: a.spec.MirrorEnd, StackSize: a.spec.MirrorStack,
		Entry: func(*probe.Context, probe.Args) {}, // Filter has recorded them
	}
	if j.StackSize == 0 {
		j.StackSize = probe.DefaultJprobeStack
	}
	j.StackSize = (j.StackSize + 7) &^ 7 // as the engine does, for the listing
	a.probe, a.kprobe = j, &j.Kprobe
}
