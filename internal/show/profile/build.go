package profile

import (
	"strconv"
	"strings"
	"time"

	pprof "github.com/google/pprof/profile"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Meta describes a profile.
type Meta struct {
	Start     time.Time
	Duration  time.Duration
	Hz        int    // of samples; 0: the stacks are of hits,
	Durations bool   // some of them of return probes, with the time from entry to return
	BuildID   string // of the guest's image, if it has one
	Comments  []string
}

// Names of the mappings, which distinguish kernel and user code.
const (
	kernelMapping = "[kernel]"
	userMapping   = "[user]"
)

// unknown is the name of code without a name.
const unknown = "[unknown]"

// more is the name for callers that were cut off a stack.
const more = "[more]"

// Labels of samples. All of them are text: pprof's encoding leaves out a number
// that is 0.
const (
	labelComm  = "comm"
	labelProbe = "probe"
	labelPID   = "pid"
	labelCPU   = "vcpu"
)

// builder finds the common parts of several stacks.
type builder struct {
	*pprof.Profile
	kernel, user *pprof.Mapping
	functions    map[[2]string]*pprof.Function // by name and file
	locations    map[string]*pprof.Location
}

// Build makes a pprof profile of stacks. Samples have counts, and with a rate
// also the time that each represents. Hits have counts, and hits of return
// probes also the time from entry to return.
func Build(m Meta, stacks []api.Stack) *pprof.Profile {
	b := builder{
		Profile: &pprof.Profile{
			TimeNanos: m.Start.UnixNano(), DurationNanos: m.Duration.Nanoseconds(), Comments: m.Comments,
		},
		kernel:    &pprof.Mapping{ID: 1, Start: 1 << 63, Limit: 1<<64 - 1, File: kernelMapping, BuildID: m.BuildID},
		user:      &pprof.Mapping{ID: 2, Limit: 1 << 63, File: userMapping},
		functions: map[[2]string]*pprof.Function{}, locations: map[string]*pprof.Location{},
	}
	b.Mapping = []*pprof.Mapping{b.kernel, b.user}
	for _, g := range b.Mapping {
		// The guest supplied all names that there are: pprof must not look for them in a
		// file.
		g.HasFunctions, g.HasFilenames, g.HasLineNumbers, g.HasInlineFrames = true, true, true, true
	}
	switch {
	case m.Hz > 0:
		b.SampleType = []*pprof.ValueType{{Type: "samples", Unit: "count"}, {Type: "time", Unit: "nanoseconds"}}
		b.PeriodType, b.Period = b.SampleType[1], int64(time.Second)/int64(m.Hz)
	case m.Durations:
		b.SampleType = []*pprof.ValueType{{Type: "hits", Unit: "count"}, {Type: "duration", Unit: "nanoseconds"}}
	default:
		b.SampleType = []*pprof.ValueType{{Type: "hits", Unit: "count"}}
	}
	b.DefaultSampleType = b.SampleType[0].Type
	for _, s := range stacks {
		values := []int64{int64(s.Count)}
		if m.Hz > 0 {
			values = append(values, int64(s.Count)*b.Period)
		} else if m.Durations {
			values = append(values, s.DurationNS)
		}
		x := &pprof.Sample{Value: values, Label: map[string][]string{labelCPU: {strconv.Itoa(s.CPU)}}, Location: b.stack(s)}
		if s.Task != nil {
			x.Label[labelComm], x.Label[labelPID] = []string{s.Task.Comm}, []string{strconv.Itoa(int(s.Task.PID))}
		}
		if s.Probe != "" {
			x.Label[labelProbe] = []string{s.Probe}
		}
		b.Sample = append(b.Sample, x)
	}
	return b.Profile
}

// stack returns the locations of a stack. Inlined functions share the location
// of the function that contains them.
func (b *builder) stack(s api.Stack) (out []*pprof.Location) {
	for i := 0; i < len(s.Frames); {
		n := 1
		for i+n < len(s.Frames) && s.Frames[i+n-1].Inlined {
			n++
		}
		out = append(out, b.location(s.Frames[i:i+n]))
		i += n
	}
	if s.Cut {
		out = append(out, b.location([]api.Frame{{Symbol: more, User: len(s.Frames) > 0 && s.Frames[len(s.Frames)-1].User}}))
	}
	return out
}

// location returns the location of a frame, preceded by the functions that are
// inlined there.
func (b *builder) location(frames []api.Frame) *pprof.Location {
	last := frames[len(frames)-1]
	var key strings.Builder
	for _, f := range frames {
		key.WriteString(f.Addr.String() + "\x00" + f.Symbol + "\x00" + f.Source + "\x00")
	}
	if l := b.locations[key.String()]; l != nil {
		return l
	}
	l := &pprof.Location{ID: uint64(len(b.Location) + 1), Mapping: b.kernel, Address: uint64(last.Addr)}
	if last.User {
		l.Mapping = b.user
	}
	for _, f := range frames {
		name, file, line := function(f), f.Source, int64(0)
		raw := f
		raw.Name = ""
		system := function(raw)
		if i := strings.LastIndexByte(file, ':'); i >= 0 {
			if n, err := strconv.ParseInt(file[i+1:], 10, 32); err == nil {
				file, line = file[:i], n
			}
		}
		at := [2]string{system, file}
		fn := b.functions[at]
		if fn == nil {
			fn = &pprof.Function{ID: uint64(len(b.Profile.Function) + 1), Name: name, SystemName: system, Filename: file}
			b.functions[at], b.Profile.Function = fn, append(b.Profile.Function, fn)
		}
		l.Line = append(l.Line, pprof.Line{Function: fn, Line: line})
	}
	b.Location, b.locations[key.String()] = append(b.Location, l), l
	return l
}

// function returns the name of a frame's function.
func function(f api.Frame) string {
	name := f.Symbol
	if f.Name != "" {
		return f.Name
	}
	if i := strings.LastIndex(name, "+0x"); i > 0 && !f.Inlined {
		name = name[:i]
	}
	if name == "" {
		return unknown
	}
	return name
}
