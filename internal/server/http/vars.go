package http

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// variables are those that the guest's code sees; in is the function that comes first of
// those that are at one place, "" for the one that the code is of.
type variables struct {
	guest Guest
	in    string
}

// Variable implements event.Variables.
func (v variables) Variable(addr guest.GVA, name string, path []string) (event.Fetch, types.Type, error) {
	info, err := v.guest.Source()
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", event.ErrNoSource, err)
	}
	img := v.guest.Image()
	by, err := slide(info, img)
	if err != nil {
		return nil, nil, err
	}
	x, err := info.Variable(uint64(addr)-by, v.in, name, path)
	if err != nil {
		return nil, nil, err
	}
	f, err := fetchOf(img, addr, by, x)
	if err != nil {
		return nil, nil, fmt.Errorf("%s is %w", name, err)
	}
	if _, structure := types.Members(x.Type); structure && len(path) == 0 {
		return nil, nil, fmt.Errorf("%s is a structure: name a member, as %s.MEMBER", name, name)
	}
	return f, x.Type, nil
}

// registers are those of the language by their numbers in debug information (System V ABI
// for AMD64, figure 3.36).
var registers = [...]event.Reg{
	event.RegAX, event.RegDX, event.RegCX, event.RegBX, event.RegSI, event.RegDI, event.RegBP, event.RegSP,
	event.RegR8, event.RegR9, event.RegR10, event.RegR11, event.RegR12, event.RegR13, event.RegR14, event.RegR15,
}

// frameBases are those that frame information has, by guest.FrameRegister.
var frameBases = [...]event.Reg{
	guest.FrameRSP: event.RegSP, guest.FrameRBP: event.RegBP, guest.FrameR10: event.RegR10, guest.FrameR13: event.RegR13, guest.FrameRDI: event.RegDI, guest.FrameRDX: event.RegDX,
}

// fetchOf returns where code at addr has a variable; by is the slide of the program.
func fetchOf(img guest.View, addr guest.GVA, by uint64, x debuginfo.Variable) (event.Fetch, error) {
	if errors.Is(x.Why, debuginfo.ErrElsewhere) {
		s, err := img.Lookup(x.Name)
		if err != nil {
			return nil, fmt.Errorf("in another file, and %w", err)
		}
		return event.Deref{Of: event.Immediate{Value: uint64(s.Addr)}}, nil
	}
	if x.Why != nil {
		return nil, x.Why
	}
	at, offset := event.Fetch(event.Immediate{}), x.Where.Offsets[0]
	switch x.Where.Base {
	case debuginfo.BaseRegister:
		at = event.Register{Reg: registers[x.Where.Reg]}
	case debuginfo.BaseProgram:
		offset += int64(by)
	case debuginfo.BaseCFA:
		rule, ok := img.FrameRule(addr)
		if !ok || rule.Outer || rule.Trap || int(rule.Base) >= len(frameBases) {
			return nil, errors.New("in the function's frame, and where that is at this place is not known")
		}
		at = event.Register{Reg: frameBases[rule.Base]}
		if rule.Indirect {
			at = event.Deref{Offset: int64(rule.Inner), Of: at}
		}
		offset += int64(rule.CFA)
	}
	plus := func() event.Fetch { // at plus offset, as a number
		if i, ok := at.(event.Immediate); ok {
			return event.Immediate{Value: i.Value + uint64(offset)}
		}
		return event.Sum{Offset: offset, Of: at}
	}
	memory := func() event.Fetch { // what is there
		if _, absolute := at.(event.Immediate); absolute {
			return event.Deref{Of: plus()}
		}
		return event.Deref{Offset: offset, Of: at}
	}
	for _, next := range x.Where.Offsets[1:] {
		at, offset = memory(), next
	}
	switch {
	case x.Where.Memory:
		return memory(), nil
	case offset == 0:
		return at, nil
	}
	return plus(), nil
}

// fetchText is a place as definitions write it; they have no words for a sum.
func fetchText(img guest.View, f event.Fetch) string {
	switch f := f.(type) {
	case event.Register:
		return "%" + f.Reg.String()
	case event.Immediate:
		return fmt.Sprintf(`\%d`, int64(f.Value))
	case event.Sum:
		return fmt.Sprintf("%s%+d", fetchText(img, f.Of), f.Offset)
	case event.Deref:
		if i, ok := f.Of.(event.Immediate); ok {
			return "@" + codePlace(img, guest.GVA(i.Value)).String()
		}
		return fmt.Sprintf("%+d(%s)", f.Offset, fetchText(img, f.Of))
	}
	panic("BUG: a variable in no such place")
}

// getVariables answers with the variables at each place of the code that a place stands for.
func (s *server) getVariables(w http.ResponseWriter, _ *http.Request, q values) error {
	at := q.text("at")
	info, by, err := sourceOf(s.guest)
	if err != nil {
		return err
	}
	img := s.guest.Image()
	var places []debuginfo.Place
	if source, ok := event.InSource("p " + at); ok {
		if places, err = inSource(info, source); err != nil {
			return &api.Error{Code: "symbol_not_found", Errno: "ENOENT", Message: err.Error()}
		}
	} else {
		_, addr, err := findFunction(img, at)
		if err != nil {
			return err
		}
		places = []debuginfo.Place{{Addr: uint64(addr) - by}}
	}
	list := api.VariableList{Places: []api.VariablePlace{}}
	for _, p := range places {
		if len(list.Places) == maxVariablePlaces {
			list.More = true
			break
		}
		all, err := info.Variables(p.Addr, p.Function)
		if err != nil {
			return &api.Error{Code: api.CodeUnavailable, Errno: "EOPNOTSUPP", Message: "the variables of " + at + ": " + err.Error()}
		}
		addr := guest.GVA(p.Addr + by)
		out := api.VariablePlace{Addr: api.Hex(addr), Symbol: s.symbolize(addr), Variables: []api.Variable{}}
		if file, line, ok := info.Line(p.Addr); ok {
			out.Source = fmt.Sprintf("%s:%d", file, line)
		}
		for _, x := range all {
			v := api.Variable{Name: x.Name, Type: types.Text(x.Declared), Function: x.Function, Parameter: x.Parameter}
			if f, err := fetchOf(img, addr, by, x); err != nil {
				v.Why = err.Error()
			} else {
				v.Where = fetchText(img, f)
			}
			out.Variables = append(out.Variables, v)
		}
		list.Places = append(list.Places, out)
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

// maxVariablePlaces bounds an answer about variables.
const maxVariablePlaces = 256

// inSource returns the places of the code that one in the source stands for.
func inSource(info *debuginfo.Info, at event.SourcePlace) ([]debuginfo.Place, error) {
	if at.Inline == "" {
		return info.Places(at.File, at.Line)
	}
	addrs, err := info.Inlined(at.Inline)
	if err == nil && len(addrs) == 0 {
		err = fmt.Errorf("no copy of a function %s is in others", at.Inline)
	}
	var out []debuginfo.Place
	for _, a := range slices.Clip(addrs) {
		out = append(out, debuginfo.Place{Addr: a, Function: at.Inline})
	}
	return out, err
}
