package http

import (
	"net/http"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

// Limits of a symbol list.
const (
	defaultSymbols = 10_000
	maxSymbols     = guest.MaxImageSymbols
)

var symbolKinds = map[guest.SymbolKind]string{guest.SymFunc: "func", guest.SymData: "data", guest.SymOther: "other"}

func (in *inspector) getSymbols(w http.ResponseWriter, _ *http.Request, q values) error {
	limit, kind := int(q.number("limit")), q.text("kind")
	known, err := in.requestTypes(q.flag("types"))
	if err != nil {
		return err
	}
	img := in.guest.Image()
	syms := img.Symbols()
	if m := q.text("match"); m != "" {
		if err := guest.CheckGlob(m); err != nil {
			return badValue("match: %v", err)
		}
		syms = img.Match(m)
	}
	list := api.SymbolList{Symbols: []api.Symbol{}}
	for _, sym := range syms {
		if kind != "" && symbolKinds[sym.Kind] != kind {
			continue
		}
		if len(list.Symbols) == limit {
			list.More = true
			break
		}
		list.Symbols = append(list.Symbols, api.Symbol{
			Name: sym.Name, Demangled: guest.SourceName(sym.Name, true), Addr: api.Hex(sym.Addr), Size: sym.Size, Kind: symbolKinds[sym.Kind],
			Global: sym.Global, User: sym.User, Section: sym.Section, Blacklist: in.blacklistReason(sym), Prototype: prototype(known, img, sym),
		})
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

// requestTypes returns the guest's types if a request needs them, or nil.
func (in *inspector) requestTypes(asked bool) (event.Types, error) {
	if !asked {
		return nil, nil
	}
	known := in.guest.Types()
	if known == nil {
		return nil, &api.Error{Code: api.CodeUnavailable, Errno: "EOPNOTSUPP", Message: "the guest's types are not known", Detail: in.adviseTypes("")}
	}
	return known, nil
}

// adviseTypes returns advice on how to give the guest types, followed by or.
func (in *inspector) adviseTypes(or string) string {
	if _, linux := in.guest.Image().(probe.Kernel); linux {
		return "the kernel has no BTF: boot one that is built with CONFIG_DEBUG_INFO_BTF=y" + or
	}
	return "its image has no BTF: build it with clang -g -gbtf, or add it with pahole -J" + or
}

// prototype returns the prototype of a function, or nil.
func prototype(known event.Types, img guest.View, sym guest.Symbol) *api.Prototype {
	if known == nil || sym.Kind != guest.SymFunc {
		return nil
	}
	proto := known.Func(event.ModuleOf(img, sym.Addr), sym.Name)
	if proto == nil {
		return nil
	}
	return wirePrototype(sym.Name, proto)
}

// filePrototype returns the prototype of a function of a file of the guest, by the file's debug information, if types are requested.
func filePrototype(t script.Target, known event.Types, name string) *api.Prototype {
	if known == nil {
		return nil
	}
	proto, _ := t.Func(name)
	if proto == nil {
		return nil
	}
	return wirePrototype(name, proto)
}

// tracepointPrototype returns the arguments of a tracepoint, as far as they are known.
func tracepointPrototype(known event.Types, name string) *api.Prototype {
	if known == nil {
		return nil
	}
	proto := known.Func("", bpf.TracepointFunction(name))
	if proto == nil || len(proto.Params) == 0 {
		return nil
	}
	return wirePrototype(name, &types.FuncProto{Return: proto.Return, Params: proto.Params[1:]})
}

// eventPrototype returns the fields of an event's record, as far as they are known.
func eventPrototype(known event.Types, name string, fieldsOf func(name string) ([]script.EventField, error)) *api.Prototype {
	if known == nil {
		return nil
	}
	fields, err := fieldsOf(name)
	if err != nil || fields == nil {
		return nil
	}
	p := &api.Prototype{Text: name, Params: []api.Parameter{}, Returns: "void"}
	for _, f := range fields {
		p.Params = append(p.Params, api.Parameter{Name: f.Name, Type: types.Text(f.Type)})
	}
	return p
}

// wirePrototype describes the prototype of a function of that name.
func wirePrototype(name string, proto *types.FuncProto) *api.Prototype {
	p := &api.Prototype{Text: types.Prototype(name, proto), Params: []api.Parameter{}, Returns: types.Text(proto.Return)}
	for _, x := range types.Parameters(proto) {
		p.Params = append(p.Params, api.Parameter(x))
	}
	return p
}

// blacklistReason returns why the symbol may not be probed, or "".
func (in *inspector) blacklistReason(sym guest.Symbol) string {
	if sym.Kind != guest.SymFunc {
		return ""
	}
	return in.guest.Image().BlacklistReason(sym.Addr)
}

// staticPrototype returns the places of a statically defined probe of a program, FILE:PROVIDER:NAME, as definitions have them, each with its arguments as the file describes them.
// Without types, which are not asked for, it is nil.
func (in *inspector) staticPrototype(known event.Types, place string) *api.Prototype {
	if known == nil {
		return nil
	}
	file, name, _ := strings.Cut(place, ":")
	provider, name, _ := strings.Cut(name, ":")
	all, at, err := in.probes.ScriptTarget().StaticProbes(file)
	if err != nil {
		return nil
	}
	p := &api.Prototype{Text: place, Params: []api.Parameter{}, Returns: "void"}
	for _, x := range all {
		if x.Provider != provider || x.Name != name || x.Why != "" {
			continue
		}
		var args []string
		for _, a := range x.Args {
			args = append(args, a.Text)
		}
		p.Params = append(p.Params, api.Parameter{Type: script.StaticPlace(at, x), Name: strings.Join(args, " ")})
	}
	return p
}
