package http

import (
	"fmt"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// isJprobe reports whether a jprobe is asked for. The definition language has no
// letter for it: it is a p definition with one of these options.
func isJprobe(spec api.ProbeSpec) bool { return spec.Args != 0 || spec.Mirror != "" }

// jprobeValues refuses options of jprobes that are out of bounds or do not fit together. What they say about the
// guest is checked by the engine.
func jprobeValues(spec api.ProbeSpec) error {
	switch {
	case spec.Args < 0 || spec.Args > api.MaxArgs:
		return badValue("args is %d: 0 to %d", spec.Args, api.MaxArgs)
	case spec.MirrorStack < 0 || spec.MirrorStack > probe.MaxJprobeStack:
		return badValue("mirrorStack is %d: 0 to %d", spec.MirrorStack, probe.MaxJprobeStack)
	case spec.Mirror == "" && (spec.MirrorStack != 0 || spec.MirrorEnd != ""):
		return badValue("mirrorStack and mirrorEnd are about a mirror: mirror is missing")
	}
	return nil
}

// withArgs returns def with the function's first n arguments behind its own,
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
func (st *store) handleJprobe(a *attached, where probe.Kprobe) {
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
