package http

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

// Limits of one request about memory: all vCPUs are stopped while it is served.
const (
	defaultLook = 64
	maxLook     = api.MaxLook
)

func (in *inspector) getMemory(w http.ResponseWriter, _ *http.Request, q values) error {
	a, n := lookQuery(q), q.number("length")
	live, symbols := q.flag("live"), q.flag("symbols")
	var as *script.Path
	var err error
	if q.given["type"] {
		if q.given["length"] {
			return badValue("length and type: the type says how long it is")
		}
		if as, err = in.pathOf(q.text("type")); err != nil {
			return err
		}
		n = as.Size
	}
	out := api.Memory{Live: live}
	var b []byte
	err = in.look(func(l *machine.Look) error {
		addr, err := a.addr(in, l)
		if err != nil {
			return err
		}
		root, err := a.root(in, l)
		if err != nil {
			return err
		}
		if as != nil {
			if addr, err = follow(l, root, addr, as); err != nil {
				return err
			}
		}
		b = make([]byte, n)
		k, err := l.Read(root, addr, b, live)
		if err != nil && (k == 0 || as != nil) {
			return err
		}
		if err != nil {
			out.Fault = err.Error()
		}
		b = b[:k]
		out.Addr, out.Symbol, out.Space = api.Hex(addr), in.nearSymbol(addr), api.Hex(root)
		return nil
	})
	if err != nil {
		return err
	}
	out.Data = hex.EncodeToString(b)
	for off := 0; (symbols || as != nil) && off+8 <= len(b); off += 8 {
		if name := in.nearSymbol(guest.GVA(binary.LittleEndian.Uint64(b[off:]))); name != "" {
			out.Symbols = append(out.Symbols, api.Pointer{Offset: off, Symbol: name})
		}
	}
	if as != nil {
		named := func(a uint64) string { return in.nearSymbol(guest.GVA(a)) }
		out.Type, out.Text, out.Value = types.Text(as.Type), as.Text(b, named), []byte(as.JSON(b))
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

func (in *inspector) putMemory(w http.ResponseWriter, r *http.Request) error {
	var req api.WriteMemory
	if err := readBody(w, r, &req, false); err != nil {
		return err
	}
	b, err := hex.DecodeString(req.Data)
	if err != nil || len(b) == 0 || len(b) > maxLook {
		return badValue("data: not 1 to %d bytes in hexadecimal", maxLook)
	}
	a := lookAt{at: req.At, vcpu: -1, task: -1, space: guest.GPA(req.Space)}
	for _, x := range []struct {
		from *int
		to   *int
	}{{req.VCPU, &a.vcpu}, {req.Task, &a.task}} {
		if x.from == nil {
			continue
		}
		if *x.to = *x.from; *x.to < 0 {
			return badValue("%d: no vCPU or task has a number below 0", *x.from)
		}
	}
	out := api.Memory{Data: req.Data}
	err = in.look(func(l *machine.Look) error {
		addr, err := a.addr(in, l)
		if err != nil {
			return err
		}
		root, err := a.root(in, l)
		if err != nil {
			return err
		}
		out.Addr, out.Symbol, out.Space = api.Hex(addr), in.nearSymbol(addr), api.Hex(root)
		return l.Write(root, addr, b)
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// pathOf finds the type that text names, and the types that contain it.
func (in *inspector) pathOf(text string) (*script.Path, error) {
	known := in.probes.ScriptTarget().Types()
	if known == nil {
		e := &api.Error{Code: api.CodeNoType, Errno: "EOPNOTSUPP", Message: "the guest's types are not known",
			Detail: in.adviseTypes("; or give its debug information with guestprobed --debug FILE")}
		if _, err := in.guest.Source(); err != nil && !errors.Is(err, debuginfo.ErrNone) {
			e.Detail = fmt.Sprintf("its image has no BTF: %v", err)
		}
		return nil, e
	}
	as, err := script.ParsePath(text, known)
	if err != nil {
		return nil, typeError(err)
	}
	if as.Size == 0 || as.Size > maxLook {
		return nil, badValue("%s has no size, or one that is not in 1 to %d", types.Text(as.Type), maxLook)
	}
	return as, nil
}

// typeError converts an error in a type's name into an API error.
func typeError(err error) error {
	var e *script.Error
	if !errors.As(err, &e) {
		return err
	}
	column, width := e.Mark, e.Width
	out := &api.Error{Code: api.CodeBadValue, Errno: "EINVAL", Message: "type: " + e.Message, Detail: e.Hint, Column: &column, Width: &width, Command: e.Source}
	if e.Unknown {
		out.Code, out.Errno = api.CodeNoType, "ENOENT"
	}
	return out
}

// follow returns the address of a part of memory whose type is at addr.
func follow(l *machine.Look, root guest.GPA, addr guest.GVA, as *script.Path) (guest.GVA, error) {
	for i, step := range as.Steps {
		if i > 0 {
			var b [8]byte
			if _, err := l.Read(root, addr, b[:], false); err != nil {
				return 0, err
			}
			addr = guest.GVA(binary.LittleEndian.Uint64(b[:]))
		}
		addr += guest.GVA(step)
	}
	return addr, nil
}
