package http

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// maxDefinitions bounds the definitions of types in an answer, in bytes. All of Linux's have 4 MiB.
const maxDefinitions = 16 << 20

// typePattern splits a pattern for types, such as "struct task_*"; ok is false for patterns for places.
func typePattern(pattern string) (tag types.Tag, name string, ok bool) {
	words := strings.Fields(pattern)
	if len(words) < 2 {
		return "", "", false
	}
	tag = types.Tag(words[0])
	return tag, strings.Join(words[1:], " "), tag == types.TagStruct || tag == types.TagUnion || tag == types.TagEnum
}

// definer is the types of a guest of which modules may have some.
type definer interface {
	TypesNamed(module string, tag types.Tag, match func(name string) bool) []types.Type
}

// listTypes returns the types whose names match a pattern, with their definitions if these are requested. What a module and the kernel
// define alike is listed once.
func (in *inspector) listTypes(tag types.Tag, pattern string, definitions bool) ([]api.TypeInfo, error) {
	if err := guest.CheckGlob(pattern); err != nil {
		return nil, badValue("match: %v", err)
	}
	known, err := in.requestTypes(true)
	if err != nil {
		return nil, err
	}
	d, ok := known.(definer)
	if !ok {
		return nil, &api.Error{Code: api.CodeUnavailable, Errno: "EOPNOTSUPP", Message: "the guest's types cannot be listed", Detail: in.adviseTypes("")}
	}
	modules := []string{""}
	if view, ok := in.guest.Image().(*linux.View); ok {
		modules = append(modules, linux.ModuleNames(view)...)
	}
	return moduleTypes(d, modules, tag, pattern, definitions)
}

// moduleTypes returns the types of these modules, "" for the kernel itself, that match.
func moduleTypes(d definer, modules []string, tag types.Tag, pattern string, definitions bool) (out []api.TypeInfo, err error) {
	seen, size := map[string]bool{}, 0 // true: of the kernel itself
	for _, module := range modules {
		for _, t := range d.TypesNamed(module, tag, func(name string) bool { return guest.Glob(pattern, name) }) {
			x := api.TypeInfo{Name: string(tag) + " " + t.TypeName(), Module: cmp.Or(module, "vmlinux")}
			if definitions {
				x.Definition = types.Definition(t)
			}
			if ofKernel, again := seen[x.Name+x.Definition]; ofKernel || again && !definitions {
				continue
			}
			seen[x.Name+x.Definition] = module == ""
			if size += len(x.Name) + len(x.Definition); size > maxDefinitions {
				return nil, &api.Error{Code: api.CodeTooMany, Errno: "E2BIG", Message: fmt.Sprintf("the definitions of these types have more than %d MiB", maxDefinitions>>20), Detail: "use a narrower pattern, or list only the names (-l)"}
			}
			out = append(out, x)
		}
	}
	slices.SortStableFunc(out, func(a, b api.TypeInfo) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}
