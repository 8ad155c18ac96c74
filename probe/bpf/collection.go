package bpf

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// Collection is an object in memory: its maps, and its programs checked.
type Collection struct {
	Maps     map[string]*Map
	Programs []LoadedProgram // in the order of their names, without those that only tail calls reach
}

// LoadedProgram is a program of a collection and its place in the guest.
type LoadedProgram struct {
	*Program
	Section  string
	AttachTo string // function, from the section's name
}

// Load makes the maps of an object, for a machine of cpus vCPUs in memory from mem,
// and checks its programs. budget is that of each program, 0 for DefaultBudget.
// Errors name the map or program; on an error all memory is freed.
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
	if err := c.load(o, budget); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// load makes the programs of an object, and fills the maps whose values are maps or
// programs.
func (c *Collection) load(o *Object, budget int64) error {
	progs := map[string]*Program{}
	next := map[string]bool{} // programs that are targets of tail calls
	same := map[[sha256.Size]byte]*Program{}
	for _, op := range o.Programs {
		if of := progs[op.copyOf]; op.copyOf != "" && of != nil {
			p := *of
			p.name, progs[op.Name] = op.Name, &p
			continue
		}
		key, ok := op.key()
		if known := same[key]; ok && known != nil { // a script has a program for each of its places, and most are the same
			p := *known
			p.name, progs[op.Name] = op.Name, &p
			continue
		}
		p, err := c.program(op, budget)
		if err != nil {
			return err
		}
		if progs[op.Name] = p; ok {
			same[key] = p
		}
	}
	for _, s := range o.Maps {
		m := c.Maps[s.Name]
		m.inner, m.progs = map[string]*Map{}, map[uint32]*Program{}
		for key, name := range s.Values {
			switch {
			case s.Kind == ProgArray && progs[name] != nil:
				m.progs[key] = progs[name]
				next[name] = true
			case s.Kind != ProgArray && c.Maps[name] != nil:
				b := make([]byte, max(s.KeySize, 4))
				binary.LittleEndian.PutUint32(b, key)
				m.inner[string(b[:s.KeySize])] = c.Maps[name]
			case s.Kind == ProgArray && o.without[name]: // a tail call to it continues after the call, as for any empty element
			default:
				return fmt.Errorf("load object: map %q has %q in it, which is not loaded: select its section too", s.Name, name)
			}
		}
	}
	for _, op := range o.Programs {
		if op.AttachTo == "" && next[op.Name] {
			continue
		}
		c.Programs = append(c.Programs, LoadedProgram{Program: progs[op.Name], Section: op.Section, AttachTo: op.AttachTo})
	}
	return nil
}

// key returns a number that equals another program's if they differ only in their names and places. ok is false if the instructions have lines of a
// source file, which messages name.
func (op *ObjectProgram) key() (sum [sha256.Size]byte, ok bool) {
	b := make([]byte, 0, 64+24*len(op.insns))
	b = fmt.Append(b, op.Kind, op.args, op.returns, op.follows)
	text := func(s string) { b = append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...) }
	b = binary.LittleEndian.AppendUint32(b, uint32(len(op.maps)))
	for _, name := range op.maps {
		text(name)
	}
	for i := range op.insns {
		x := &op.insns[i]
		if x.Source() != nil || x.Map() != nil {
			return sum, false
		}
		b = binary.LittleEndian.AppendUint64(b, uint64(x.OpCode))
		b = append(b, byte(x.Dst), byte(x.Src))
		b = binary.LittleEndian.AppendUint16(b, uint16(x.Offset))
		b = binary.LittleEndian.AppendUint64(b, uint64(x.Constant))
		text(x.Reference())
		text(x.Symbol())
	}
	return sha256.Sum256(b), true
}

func (c *Collection) program(op ObjectProgram, budget int64) (*Program, error) {
	spec := Spec{Name: op.Name, Kind: op.Kind, Insns: op.insns, Budget: budget, Args: op.args, Returns: op.returns, Follows: op.follows, shows: op.shows}
	for _, name := range op.maps {
		m := c.Maps[name]
		if m == nil {
			return nil, fmt.Errorf("make program %q: no map %q", op.Name, name)
		}
		spec.Maps = append(spec.Maps, m)
	}
	p, err := New(spec)
	if missing := (*MissingError)(nil); errors.As(err, &missing) {
		return nil, fmt.Errorf("load object: program %q in section %q, %w", op.Name, op.Section, missing)
	}
	return p, err
}

// Close frees the memory of the maps. No program of the collection may run any more.
// It may be called more than once.
func (c *Collection) Close() {
	for _, p := range c.Programs {
		clear(p.segs) // a return probe is kept while calls of its function are under way
	}
	for _, m := range c.Maps {
		for _, p := range m.progs {
			clear(p.segs)
		}
		m.Close()
	}
}
