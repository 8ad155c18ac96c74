package http

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/source"
)

// fetchText returns a place in the syntax of definitions, which has no sums.
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
			return "@" + source.CodePlace(img, guest.GVA(i.Value)).String()
		}
		return fmt.Sprintf("%+d(%s)", f.Offset, fetchText(img, f.Of))
	}
	panic("BUG: a variable in no such place")
}

// getVariables answers with the variables at each address of a place.
func (in *inspector) getVariables(w http.ResponseWriter, _ *http.Request, q values) error {
	at := q.text("at")
	info, by, err := sourceOf(in.guest)
	if err != nil {
		return err
	}
	img := in.guest.Image()
	var places []debuginfo.Place
	if line, ok := event.ReadSourcePlace(at); ok {
		if places, err = source.Places(info, line); err != nil {
			detail := ""
			if none := (*debuginfo.NoLineError)(nil); errors.As(err, &none) && none.NoFile {
				detail = "'guestprobe vars FUNCTION' shows a function's file"
			}
			return &api.Error{Code: "symbol_not_found", Errno: "ENOENT", Message: err.Error(), Detail: detail}
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
		out := api.VariablePlace{Addr: api.Hex(addr), Symbol: in.symbolize(addr), Variables: []api.Variable{}}
		if file, line, ok := info.Line(p.Addr); ok {
			out.Source = fmt.Sprintf("%s:%d", file, line)
		}
		for _, x := range all {
			v := api.Variable{Name: x.Name, Type: types.Text(x.Declared), Function: x.Function, Parameter: x.Parameter}
			if f, err := source.Fetch(img, addr, by, x); err != nil {
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
