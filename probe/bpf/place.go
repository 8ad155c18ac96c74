package bpf

import (
	"fmt"
	"slices"
)

// Decisions about a program before it is attached, for a running guest and for a
// check without a guest: whether and why it runs on the host, with which maps, and
// whether it is rejected.

// HostReason returns why the program runs on the host in any guest, "" if it may run
// in a guest.
func (p *Program) HostReason() string {
	if p.kind == Watch {
		return "a watch takes an exit"
	}
	for _, h := range p.helpers { // their reason is more specific than that only the host has their maps
		if info := helperByID[h]; info.Place == OnHost {
			return fmt.Sprintf("it calls %v, which %s", h, info.Why)
		}
	}
	return p.hostOnly()
}

// CodeSize returns the number of bytes of the program's machine code in a typical Linux
// guest; the code of a certain guest may be a few bytes longer or shorter. Its maps need
// addresses (Area.Addr). The error says why the program runs on the host.
func (p *Program) CodeSize() (int, error) {
	const far = 1 << 10 // an offset that takes four bytes
	number := &TaskNumber{Follow: []int32{far, 8}, Off: far}
	code, _, err := Compile(p, Layout{
		Task:   &TaskProfile{TID: far, TGID: far + 4, Comm: far + 8, Current: far, Owner: &TaskNumber{Follow: []int32{far}, Off: 8, Split: true, High: 12}, Cgroup: number},
		Fixups: true, Frames: &Frames{Trampolines: Trampolines{Magic: 1 << 60, Jump: 10, Size: 16}},
	})
	return len(code), err
}

// InUser reports whether the program's section names a place in user code.
func (p *LoadedProgram) InUser() bool { return inUserCode(p.Section) }

// Placement is where programs run, and which maps programs in the guest use.
//
// A program in the guest uses memory of the privilege that it runs at. CPL3 must
// neither read data of the kernel that a program has stored, nor write data that the
// program relies on; and CPL0 must not touch memory of CPL3, or it faults once the
// guest has set CR4.SMAP. So programs of both privileges never share a map in the
// guest: the map is the kernel's, and the program of user code runs on the host.
type Placement struct {
	Why  []string        // by program: why it runs on the host; "": it can run in the guest
	User []bool          // by program: it is for code of CPL3
	Maps map[string]bool // maps that programs in the guest use; true if it is a map of user code
}

// Places decides where programs run: judge returns a reason why one runs on the host
// by itself, and whether it is for user code.
func Places(ps []LoadedProgram, judge func(p *LoadedProgram) (why string, user bool)) Placement {
	pl := Placement{Maps: map[string]bool{}}
	for i := range ps {
		why, user := judge(&ps[i])
		pl.Why, pl.User = append(pl.Why, why), append(pl.User, user)
	}
	for _, user := range []bool{false, true} {
		for i, p := range ps {
			if pl.User[i] == user && pl.Why[i] == "" {
				pl.Why[i] = pl.giveMaps(p.Maps(), user)
			}
		}
	}
	return pl
}

// giveMaps puts the maps of a program into the guest, or says why not.
func (pl *Placement) giveMaps(maps []*Map, user bool) string {
	for _, m := range maps {
		if of, ok := pl.Maps[m.Spec().Name]; ok && of != user {
			return fmt.Sprintf("it shares map %q with a program at kernel code, and user code must not reach that", m.Spec().Name)
		}
	}
	for _, m := range maps {
		pl.Maps[m.Spec().Name] = user
	}
	return ""
}

// Allowed says which programs are accepted.
type Allowed struct {
	Unsafe bool                // they may change the guest: see Helper.ChangesGuest
	Strict bool                // programs with warnings are rejected
	Lacks  func(Helper) string // see Program.WarnLacking; nil: nothing lacks
}

// UnsafeError is the rejection of a program that changes the guest.
type UnsafeError struct {
	Section, Program string
	Helper           Helper
}

// Error names the program and the helper it calls.
func (e *UnsafeError) Error() string {
	return fmt.Sprintf("section %q: program %s calls %v, which changes what the guest does", e.Section, e.Program, e.Helper)
}

// StrictError is the rejection of a program for its warnings.
type StrictError struct {
	Section, Program string
	Warnings         []Warning // at least one
}

// Error returns the first warning.
func (e *StrictError) Error() string {
	return fmt.Sprintf("load object: program %q in section %q: %v", e.Program, e.Section, &e.Warnings[0])
}

// PlaceError is the rejection of a program without a place to attach to.
type PlaceError struct{ Section, Program string }

// Error names the program and its section.
func (e *PlaceError) Error() string {
	return fmt.Sprintf("section %q, function %q: not a place and a name", e.Section, e.Program)
}

// Judge returns the warnings of a program, or the error for which it is rejected.
func (p *LoadedProgram) Judge(a Allowed) ([]Warning, error) {
	if p.AttachTo == "" {
		return nil, &PlaceError{p.Section, p.Name()}
	}
	if i := slices.IndexFunc(p.helpers, Helper.ChangesGuest); i >= 0 && !a.Unsafe {
		return nil, &UnsafeError{Section: p.Section, Program: p.Name(), Helper: p.helpers[i]}
	}
	warnings := append(p.Warnings(), p.warnLinked()...)
	if a.Lacks != nil {
		warnings = append(warnings, p.WarnLacking(a.Lacks)...)
	}
	if a.Strict && len(warnings) > 0 {
		return warnings, &StrictError{Section: p.Section, Program: p.Name(), Warnings: warnings}
	}
	return warnings, nil
}
