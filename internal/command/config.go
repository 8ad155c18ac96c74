package command

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
	"github.com/spf13/pflag"
)

// ApplyConfig sets flags from a TOML file that has the flags' names as keys, without tables. A flag with several values is an
// array. Flags of the command line keep their values. Flags named in not are not allowed in a file. ApplyConfig returns
// where each flag was set, such as "PATH:3". Errors begin with this place too.
func ApplyConfig(f *pflag.FlagSet, path string, text []byte, not ...string) (where map[string]string, err error) {
	p := &unstable.Parser{}
	p.Reset(text)
	at := func(r unstable.Range) string { return fmt.Sprintf("%s:%d", path, p.Shape(r).Start.Line) }
	given := map[string]bool{}
	f.Visit(func(flag *pflag.Flag) { given[flag.Name] = true })
	where = map[string]string{}
	for p.NextExpression() {
		e := p.Expression()
		if e.Kind == unstable.Comment {
			continue
		}
		name, line := "", ""
		for key := e.Key(); key.Next(); {
			if name == "" {
				line = at(key.Node().Raw)
			} else {
				name += "."
			}
			name += string(key.Node().Data)
		}
		flag := f.Lookup(name)
		switch {
		case e.Kind != unstable.KeyValue:
			return nil, Usagef("%s: table %q: tables are not supported, only names and values", line, name)
		case flag == nil || flag.Name == "help" || flag.Name == "version" || slices.Contains(not, name):
			return nil, Usagef("%s: no option %q%s", line, name, suggestFlag(f, name, not))
		case where[name] != "":
			return nil, Usagef("%s: %s is in %s already", line, name, where[name])
		}
		where[name] = line
		if given[name] {
			continue
		}
		values, err := valuesOf(e.Value())
		if err != nil {
			return nil, Usagef("%s: %s: %w", line, name, err)
		}
		if _, several := flag.Value.(pflag.SliceValue); len(values) > 1 && !several && flag.Annotations[Several] == nil {
			return nil, Usagef("%s: %s: an array, where one value belongs", line, name)
		}
		for _, v := range values {
			if err := f.Set(name, v); err != nil {
				var invalid *pflag.InvalidValueError
				if errors.As(err, &invalid) {
					if err = invalidWhy(invalid); valueTypes[flag.Value.Type()] != "" {
						err = fmt.Errorf("%q: %w", v, err)
					}
				}
				return nil, Usagef("%s: %s: %w", line, name, err)
			}
		}
	}
	if err := p.Error(); err != nil {
		var bad *unstable.ParserError
		if errors.As(err, &bad) {
			return nil, Usagef("%s: %s", at(p.Range(bad.Highlight)), bad.Message)
		}
		return nil, Usagef("%s: %w", path, err)
	}
	maps.DeleteFunc(where, func(name, _ string) bool { return given[name] })
	return where, nil
}

// Several is the annotation of a flag that can be repeated although it is not one of pflag's list types.
const Several = "guestprobe-several"

// MarkSeveral marks a flag as repeatable. It panics if the flag does not exist.
func MarkSeveral(f *pflag.FlagSet, name string) {
	if err := f.SetAnnotation(name, Several, []string{"yes"}); err != nil {
		panic("BUG: " + err.Error())
	}
}

// valuesOf returns a value, or the values of an array, in the form that they have on a command line.
func valuesOf(n *unstable.Node) ([]string, error) {
	switch n.Kind {
	case unstable.String, unstable.Bool:
		return []string{string(n.Data)}, nil
	case unstable.Integer:
		return []string{strings.ReplaceAll(string(n.Data), "_", "")}, nil
	case unstable.Array:
		var out []string
		for it := n.Children(); it.Next(); {
			if it.Node().Kind == unstable.Comment {
				continue
			}
			if it.Node().Kind == unstable.Array {
				return nil, errors.New("an array in an array")
			}
			v, err := valuesOf(it.Node())
			if err != nil {
				return nil, err
			}
			out = append(out, v...)
		}
		return out, nil
	}
	return nil, errors.New("neither text, a number, true or false, nor an array of these")
}

// suggestFlag suggests flags with names similar to an unknown one.
func suggestFlag(f *pflag.FlagSet, name string, not []string) string {
	var names []string
	f.VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden && !slices.Contains(not, flag.Name) {
			names = append(names, flag.Name)
		}
	})
	if near := Suggest(name, slices.Values(names)); near != "" {
		return ": " + near
	}
	return ""
}
