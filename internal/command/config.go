package command

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Configured gives flags the values that a file has for them: TOML whose names are those of the flags, without tables. What has
// several values is an array. Flags that the command line has given keep theirs. Not are flags that no file has. It returns
// where each flag's value came from, as "PATH:3", which also begins the text of an error.
func Configured(f *pflag.FlagSet, path string, text []byte, not ...string) (where map[string]string, err error) {
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
			return nil, Usagef("%s: table %q: there are none, only names and values", line, name)
		case flag == nil || flag.Name == "help" || flag.Name == "version" || slices.Contains(not, name):
			return nil, Usagef("%s: no option %q%s", line, name, meant(f, name, not))
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

// Several is the annotation of a flag that may be repeated and is none of pflag's own lists.
const Several = "guestprobe-several"

// MarkSeveral says that a flag, which there must be, may be repeated.
func MarkSeveral(f *pflag.FlagSet, name string) {
	if err := f.SetAnnotation(name, Several, []string{"yes"}); err != nil {
		panic("BUG: " + err.Error())
	}
}

// valuesOf returns the value, or those of an array, as a command line has them.
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

// meant names the flags whose names are near to one that is none.
func meant(f *pflag.FlagSet, name string, not []string) string {
	c := &cobra.Command{SuggestionsMinimumDistance: 2}
	f.VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden && !slices.Contains(not, flag.Name) {
			c.AddCommand(&cobra.Command{Use: flag.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	if near := c.SuggestionsFor(name); len(near) > 0 {
		return ": did you mean " + strings.Join(near, " or ") + "?"
	}
	return ""
}
