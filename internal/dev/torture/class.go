package torture

import (
	"fmt"
	"strings"
)

// Class is a set of abilities of guests, and of operations on them, in addition
// to the basic ones.
type Class uint8

// The classes. Each class of code is in a third of the programs.
const (
	Saves    Class = 1 << iota // snapshots at random moments, and machines that continue from them
	Steps                      // steps and runs to an address at random moments
	Watches                    // watches of descriptor tables, page tables and stacks
	Aliases                    // code: text that is mapped a second time, and run there
	Moves                      // code: stacks that move under calls, returns that come twice, return addresses kept elsewhere
	Rewrites                   // code: user text that can be written, and rewrites its next instruction
	Tracers                    // code: a tracer of the guest's own, with int3s and text that it writes back
	Places                     // code: instructions that leave their address in a register
)

// All are all classes.
const All = Saves | Steps | Watches | Aliases | Moves | Rewrites | Tracers | Places

// Classes are the default classes.
const Classes = All

var classNames = [...]string{"saves", "steps", "watches", "aliases", "moves", "rewrites", "tracers", "places"}

// ParseClasses parses a list of names with commas between them; "none" is the
// empty list.
func ParseClasses(list string) (Class, error) {
	var c Class
	for name := range strings.SplitSeq(list, ",") {
		if name == "none" {
			continue
		}
		found := false
		for i, n := range classNames {
			if n == name {
				c |= 1 << i
				found = true
			}
		}
		if !found {
			return 0, fmt.Errorf("%q is not one of %s, none", name, strings.Join(classNames[:], ", "))
		}
	}
	return c, nil
}

// String returns the names, with commas between them.
func (c Class) String() string {
	var s []string
	for i, n := range classNames {
		if c&(1<<i) != 0 {
			s = append(s, n)
		}
	}
	if s == nil {
		return "none"
	}
	return strings.Join(s, ",")
}
