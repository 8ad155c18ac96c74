package bpf

import "fmt"

// Collection is an object in memory: its maps, and its programs checked.
type Collection struct {
	Maps     map[string]*Map
	Programs []LoadedProgram // in the order of their names
}

// LoadedProgram is a program of a collection and where it belongs.
type LoadedProgram struct {
	*Program
	Section  string
	AttachTo string // function, from the section's name
}

// Load makes the maps of an object, for a machine of cpus vCPUs in memory from
// mem, and checks its programs. budget is that of each program, 0 for
// DefaultBudget. Errors name the map or program; nothing is left behind then.
func (o *Object) Load(cpus int, mem Memory, budget int64) (*Collection, error) {
	return o.LoadIn(cpus, func(string) Memory { return mem }, budget)
}

// LoadIn is Load with the memory of each map, by its name.
func (o *Object) LoadIn(cpus int, mem func(name string) Memory, budget int64) (*Collection, error) {
	c := &Collection{Maps: map[string]*Map{}}
	total := 0
	for _, s := range o.Maps {
		m, err := NewMap(s, cpus, mem(s.Name))
		if err != nil {
			c.Close()
			return nil, err
		}
		c.Maps[s.Name] = m
		if total += m.Size(); total > MaxMapSize {
			c.Close()
			return nil, fmt.Errorf("load object: its maps take more than %d bytes: %w", MaxMapSize, ErrMapLimit)
		}
	}
	for _, op := range o.Programs {
		p, err := c.program(op, budget)
		if err != nil {
			c.Close()
			return nil, err
		}
		c.Programs = append(c.Programs, LoadedProgram{Program: p, Section: op.Section, AttachTo: op.AttachTo})
	}
	return c, nil
}

func (c *Collection) program(op ObjectProgram, budget int64) (*Program, error) {
	spec := Spec{Name: op.Name, Kind: op.Kind, Insns: op.insns, Budget: budget}
	for _, name := range op.maps {
		m := c.Maps[name]
		if m == nil {
			return nil, fmt.Errorf("make program %q: no map %q", op.Name, name)
		}
		spec.Maps = append(spec.Maps, m)
	}
	return New(spec)
}

// Close gives the memory of the maps back. No program of the collection may run
// any more. It may be called more than once.
func (c *Collection) Close() {
	for _, m := range c.Maps {
		m.Close()
	}
}
