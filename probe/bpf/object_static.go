package bpf

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/sdt"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// Programs of usdt sections are at statically defined probes of a program. libbpf's usdt.bpf.h has them ask which place they are at
// (bpf_get_attach_cookie), and look up in a map where that place has its arguments. The map is filled here as libbpf does it, by the types that the object
// has of it. A program has as many copies as there are places, each of which knows its own.

// staticSpecs is the map of usdt.bpf.h.
const staticSpecs = "__bpf_usdt_specs"

// maxStaticArgs is how many arguments a place has at most (BPF_USDT_MAX_ARG_CNT).
const maxStaticArgs = 12

// atStatic reports whether a section is about statically defined probes.
func atStatic(section string) bool {
	prefix, _, _ := strings.Cut(strings.TrimPrefix(section, "?"), "/")
	return prefix == "usdt" || prefix == "usdt.s"
}

// splitStatic takes PATH:PROVIDER:NAME apart.
func splitStatic(at string) (path, provider, name string, ok bool) {
	parts := strings.Split(at, ":")
	if len(parts) != 3 || !strings.HasPrefix(at, "/") || parts[1] == "" || parts[2] == "" {
		return "", "", "", false
	}
	return parts[0], parts[1], parts[2], true
}

// statics makes the programs of one object that are at statically defined probes.
type statics struct {
	find  func(path string) (all []sdt.Probe, at string, err error) // nil: nothing is known of files
	specs []sdt.Probe                                               // by the number of the place
}

// places returns the copies of p for the places of its probe.
func (s *statics) places(p ObjectProgram) ([]ObjectProgram, error) {
	if p.AttachTo == "" || s.find == nil { // who attaches it says where it is
		return []ObjectProgram{p}, nil
	}
	path, provider, name, ok := splitStatic(p.AttachTo)
	if !ok {
		return nil, fmt.Errorf("%q is %w: want usdt//PATH:PROVIDER:NAME, with a path in the guest", p.AttachTo, ErrSection)
	}
	all, at, err := s.find(path)
	if err != nil {
		return nil, err
	}
	var out []ObjectProgram
	for _, x := range all {
		if x.Provider != provider || x.Name != name {
			continue
		}
		if x.Why != "" {
			return nil, fmt.Errorf("the probe %s:%s of %s cannot be probed: %s", provider, name, path, x.Why)
		}
		q := p
		if q.AttachTo = fmt.Sprintf("%s:%#x", at, x.Offset); x.Semaphore != 0 {
			q.AttachTo += fmt.Sprintf("(%#x)", x.Semaphore)
		}
		if len(out) > 0 {
			q.Name = fmt.Sprintf("%s_%d", p.Name, len(out)+1)
		}
		q.insns = withCookie(p.insns, len(s.specs))
		s.specs = append(s.specs, x)
		out = append(out, q)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no statically defined probe %s:%s", path, provider, name)
	}
	return out, nil
}

// withCookie returns instructions that have the number n in the place of each call of bpf_get_attach_cookie.
func withCookie(in asm.Instructions, n int) asm.Instructions {
	out := make(asm.Instructions, len(in))
	copy(out, in)
	for i := range out {
		if out[i].IsBuiltinCall() && Helper(out[i].Constant) == HelperGetAttachCookie {
			put := asm.Mov.Imm(asm.R0, int32(n))
			put.Metadata = out[i].Metadata
			out[i] = put
		}
	}
	return out
}

// fill fills the map of places, if the object has it.
func (s *statics) fill(o *Object, spec *ebpf.CollectionSpec) error {
	if len(s.specs) == 0 {
		return nil
	}
	for i := range o.Maps {
		m := &o.Maps[i]
		if m.Name != staticSpecs || spec.Maps[staticSpecs] == nil {
			continue
		}
		t, ok := btf.UnderlyingType(spec.Maps[staticSpecs].Value).(*btf.Struct)
		if !ok || m.Kind != Array || int(m.ValueSize) != int(t.Size) || t.Size%8 != 0 {
			return fmt.Errorf("map %q is not as usdt.bpf.h has it", staticSpecs)
		}
		if len(s.specs) > int(m.MaxEntries) {
			return fmt.Errorf("map %q has %d entries, and the probes have %d places: define BPF_USDT_MAX_SPEC_CNT", staticSpecs, m.MaxEntries, len(s.specs))
		}
		m.Contents = make([]byte, len(s.specs)*int(t.Size))
		for n, p := range s.specs {
			if err := putSpec(t, m.Contents[n*int(t.Size):][:t.Size], &p); err != nil {
				return fmt.Errorf("the probe %s:%s: %w", p.Provider, p.Name, err)
			}
		}
	}
	return nil
}

// Kinds of arguments in usdt.bpf.h (enum __bpf_usdt_arg_type).
const (
	staticConst = iota
	staticReg
	staticDeref
	staticIndexed // since libbpf 1.7
)

// putSpec writes a struct __bpf_usdt_spec.
func putSpec(t *btf.Struct, b []byte, p *sdt.Probe) error {
	args, err := memberOf(t, "args")
	if err != nil {
		return err
	}
	array, ok := btf.UnderlyingType(args.Type).(*btf.Array)
	if !ok {
		return errors.New("its arguments are no array in the types of the object")
	}
	arg, ok := btf.UnderlyingType(array.Type).(*btf.Struct)
	at := int(args.Offset / 8)
	switch {
	case !ok || uint64(at)+uint64(array.Nelems)*uint64(arg.Size) > uint64(len(b)):
		return errors.New("its arguments are not as usdt.bpf.h has them")
	case len(p.Args) > min(maxStaticArgs, int(array.Nelems)):
		return fmt.Errorf("it has %d arguments, and usdt.bpf.h is for %d", len(p.Args), min(maxStaticArgs, int(array.Nelems)))
	}
	for i := range p.Args {
		if err := putArg(arg, b[at+i*int(arg.Size):][:arg.Size], &p.Args[i]); err != nil {
			return fmt.Errorf("argument %d, %s, cannot be read: %w", i, p.Args[i].Text, err)
		}
	}
	return putMember(t, b, "arg_cnt", uint64(len(p.Args)))
}

// putArg writes a struct __bpf_usdt_arg_spec.
func putArg(t *btf.Struct, b []byte, a *sdt.Arg) error {
	kind, reg, value := uint64(staticConst), 0, uint64(a.Value)
	switch {
	case a.Why != "":
		return errors.New(a.Why)
	case a.Kind == sdt.Register:
		kind, reg, value = staticReg, x86.PtReg(a.Reg), 0
		if a.High {
			reg++ // the second byte of it
		}
	case a.Kind == sdt.Memory && a.Base == sdt.None:
		return errors.New("its address has no base, which usdt.bpf.h does not know")
	case a.Kind == sdt.Memory:
		if kind, reg = staticDeref, x86.PtReg(a.Base); a.Index == sdt.None {
			break
		}
		kind = staticIndexed
		if _, err := memberOf(t, "idx_reg_off"); err != nil {
			return errors.New("its address has an index, which this object's usdt.bpf.h does not know: compile it with that of libbpf 1.7")
		}
		if err := errors.Join(putMember(t, b, "idx_reg_off", uint64(x86.PtReg(a.Index))), putMember(t, b, "scale_bitshift", uint64(a.Scale))); err != nil {
			return err
		}
	}
	signed := uint64(0)
	if a.Signed {
		signed = 1
	}
	return errors.Join(putMember(t, b, "val_off", value), putMember(t, b, "arg_type", kind), putMember(t, b, "reg_off", uint64(reg)),
		putMember(t, b, "arg_signed", signed), putMember(t, b, "arg_bitshift", uint64(64-8*a.Size)))
}

func memberOf(t *btf.Struct, name string) (btf.Member, error) {
	for _, m := range t.Members {
		if m.Name == name {
			return m, nil
		}
	}
	return btf.Member{}, fmt.Errorf("%s has no member %s in the types of the object", t.Name, name)
}

// putMember writes a number into a member of a structure, which may be a bit field.
func putMember(t *btf.Struct, b []byte, name string, value uint64) error {
	m, err := memberOf(t, name)
	if err != nil {
		return err
	}
	bits := uint64(m.BitfieldSize)
	if bits == 0 {
		size, err := btf.Sizeof(m.Type)
		if err != nil {
			return err
		}
		bits = uint64(size) * 8
	}
	if uint64(m.Offset)+bits > uint64(len(b))*8 {
		return fmt.Errorf("%s.%s is outside of it in the types of the object", t.Name, name)
	}
	for i := range bits {
		if at := uint64(m.Offset) + i; i < 64 && value>>i&1 != 0 {
			b[at/8] |= 1 << (at % 8)
		}
	}
	return nil
}
