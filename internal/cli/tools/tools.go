package tools

import (
	"embed"
	"fmt"
	"path"
	"slices"
	"strings"
)

//go:embed *.bt
var files embed.FS

// Tool is a script with arguments.
type Tool struct {
	Name     string    `json:"name"`
	Usage    string    `json:"usage"`   // the arguments as shown in help texts
	Summary  string    `json:"summary"` // one sentence
	Help     string    `json:"help"`    // lines
	Params   []Param   `json:"params"`
	Variants []Variant `json:"variants"` // at least one
}

// Param is an argument of a tool.
type Param struct {
	Name    string   `json:"name"`
	Default []string `json:"default,omitempty"` // the first of these that the guest has; nil: the argument is required
}

// Variant is a tool's script for some guests.
type Variant struct {
	Needs  string `json:"needs,omitempty"` // a pattern for a function that the guest must have; "": for all guests
	Script string `json:"script"`
}

// List returns the tools, sorted by name.
func List() []Tool {
	var out []Tool
	entries, err := files.ReadDir(".")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	for _, e := range entries {
		text, err := files.ReadFile(e.Name())
		if err != nil {
			panic("BUG: " + err.Error())
		}
		t := parse(e.Name(), string(text))
		if n := len(out); n > 0 && out[n-1].Name == t.Name {
			out[n-1].Variants = append(out[n-1].Variants, t.Variants...)
			continue
		}
		out = append(out, t)
	}
	return out
}

// Find returns the tool with that name.
func Find(name string) (Tool, bool) {
	all := List()
	i := slices.IndexFunc(all, func(t Tool) bool { return t.Name == name })
	if i < 0 {
		return Tool{}, false
	}
	return all[i], true
}

// parse parses the comment at the beginning of a script: a sentence, lines such as "usage: A [B=1]" and
// "needs: FUNCTION", and after an empty line the help.
func parse(file, text string) Tool {
	name, _, _ := strings.Cut(path.Base(file), ".")
	t := Tool{Name: name}
	v := Variant{Script: text}
	inHelp := false
	for line := range strings.Lines(text) {
		line, comment := strings.CutPrefix(strings.TrimRight(line, "\n"), "//")
		if !comment {
			break
		}
		line = strings.TrimPrefix(line, " ")
		usage, isUsage := strings.CutPrefix(line, "usage:")
		needs, isNeeds := strings.CutPrefix(line, "needs:")
		switch {
		case inHelp:
			t.Help += line + "\n"
		case line == "":
			inHelp = true
		case isUsage:
			t.Usage = strings.TrimSpace(usage)
		case isNeeds:
			v.Needs = strings.TrimSpace(needs)
		default:
			t.Summary = line
		}
	}
	for _, word := range strings.Fields(t.Usage) {
		p := Param{Name: word}
		if in, ok := strings.CutPrefix(word, "["); ok {
			name, value, _ := strings.Cut(strings.TrimSuffix(in, "]"), "=")
			p = Param{Name: name, Default: strings.Split(value, "|")}
		}
		t.Params = append(t.Params, p)
	}
	t.Variants = []Variant{v}
	return t
}

// Script returns the script for a guest, and its arguments. has reports whether the guest has a
// function that matches a pattern. Script returns an error if an argument or a function is missing.
func (t Tool) Script(args []string, has func(pattern string) bool) (script string, params []string, err error) {
	if len(args) > len(t.Params) {
		return "", nil, fmt.Errorf("%s: unexpected argument %q", t.Name, args[len(t.Params)])
	}
	i := slices.IndexFunc(t.Variants, func(v Variant) bool { return v.Needs == "" || has(v.Needs) })
	if i < 0 {
		var needs []string
		for _, v := range t.Variants {
			needs = append(needs, v.Needs)
		}
		return "", nil, fmt.Errorf("%s: the guest has no function %s", t.Name, strings.Join(needs, ", and none "))
	}
	params = slices.Clone(args)
	for _, p := range t.Params[len(args):] {
		value := ""
		switch {
		case len(p.Default) == 0:
			return "", nil, fmt.Errorf("%s needs an argument: %s", t.Name, p.Name)
		case len(p.Default) == 1:
			value = p.Default[0]
		default:
			i := slices.IndexFunc(p.Default, has)
			if i < 0 {
				return "", nil, fmt.Errorf("%s: the guest has no function %s: say which %s is", t.Name, strings.Join(p.Default, " or "), p.Name)
			}
			value = p.Default[i]
		}
		params = append(params, value)
	}
	return t.Variants[i].Script, params, nil
}
