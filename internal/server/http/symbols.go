package http

import (
	"net/http"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Limits of a symbol list.
const (
	defaultSymbols = 10_000
	maxSymbols     = guest.MaxImageSymbols
)

var symbolKinds = map[guest.SymbolKind]string{guest.SymFunc: "func", guest.SymData: "data", guest.SymOther: "other"}

func (in *inspector) getSymbols(w http.ResponseWriter, _ *http.Request, q values) error {
	limit, kind := int(q.number("limit")), q.text("kind")
	known, err := in.askedTypes(q.flag("types"))
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
			Global: sym.Global, User: sym.User, Section: sym.Section, Blacklist: in.blacklisted(sym), Prototype: prototype(known, img, sym),
		})
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

// askedTypes are the guest's types where a request asks for them, or nil.
func (in *inspector) askedTypes(asked bool) (event.Types, error) {
	if !asked {
		return nil, nil
	}
	known := in.guest.Types()
	if known == nil {
		return nil, &api.Error{Code: api.CodeUnavailable, Errno: "EOPNOTSUPP", Message: "the guest's types are not known", Detail: in.adviseTypes("")}
	}
	return known, nil
}

// adviseTypes says how the guest gets types, and what else would do.
func (in *inspector) adviseTypes(or string) string {
	if _, linux := in.guest.Image().(probe.Kernel); linux {
		return "the kernel has no BTF: boot one that is built with CONFIG_DEBUG_INFO_BTF=y" + or
	}
	return "its image has no BTF: build it with clang -g -gbtf, or add it with pahole -J" + or
}

// prototype returns that of a function, or nil.
func prototype(known event.Types, img guest.View, sym guest.Symbol) *api.Prototype {
	if known == nil || sym.Kind != guest.SymFunc {
		return nil
	}
	proto := known.Func(event.ModuleOf(img, sym.Addr), sym.Name)
	if proto == nil {
		return nil
	}
	p := &api.Prototype{Text: types.Prototype(sym.Name, proto), Params: []api.Parameter{}, Returns: types.Text(proto.Return)}
	for _, x := range types.Parameters(proto) {
		p.Params = append(p.Params, api.Parameter(x))
	}
	return p
}

// blacklisted returns why the symbol may not be probed, or "".
func (in *inspector) blacklisted(sym guest.Symbol) string {
	if sym.Kind != guest.SymFunc {
		return ""
	}
	return in.guest.Image().Blacklisted(sym.Addr)
}
