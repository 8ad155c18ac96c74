package command

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
)

// settings has flags of each type.
type settings struct {
	Name   string
	Number int
	Yes    bool
	Time   time.Duration
	List   []string
}

func (s *settings) flags() *pflag.FlagSet {
	f := pflag.NewFlagSet("program", pflag.ContinueOnError)
	f.StringVar(&s.Name, "name", "", "")
	f.IntVar(&s.Number, "number", 7, "")
	f.BoolVar(&s.Yes, "yes", false, "")
	f.DurationVar(&s.Time, "time-limit", 0, "")
	f.StringArrayVar(&s.List, "list", nil, "")
	f.Bool("command-line-only", false, "")
	return f
}

func TestConfigured(t *testing.T) {
	for _, c := range []struct {
		name, text string
		args       []string
		want       settings
		err        string
	}{
		{name: "nothing", text: "# only this\n", want: settings{Number: 7}},
		{name: "each sort", text: "name = 'a\\b'\nnumber = 1_000\nyes = true\ntime-limit = \"2s\"\nlist = [\n 'p:a b', # why\n 'x,y',\n]\n",
			want: settings{`a\b`, 1000, true, 2 * time.Second, []string{"p:a b", "x,y"}}},
		{name: "one of a list", text: "list = 'x'", want: settings{Number: 7, List: []string{"x"}}},
		{name: "flags win", text: "number = 3\nlist = ['a']\nname = 'file'", args: []string{"--number", "7", "--list", "b"}, want: settings{Name: "file", Number: 7, List: []string{"b"}}},
		{name: "unknown", text: "\n\nnumbre = 3\n", err: `x.toml:3: no option "numbre": did you mean number?`},
		{name: "unknown and near nothing", text: "whatever = 3\n", err: `x.toml:1: no option "whatever"`},
		{name: "of the command line alone", text: "command-line-only = true\n", err: `x.toml:1: no option "command-line-only"`},
		{name: "twice", text: "number = 3\nnumber = 4", err: "x.toml:2: number is in x.toml:1 already"},
		{name: "table", text: "[probes]\na = 1", err: `x.toml:1: table "probes": tables are not supported, only names and values`},
		{name: "dotted", text: "a.b = 1", err: `x.toml:1: no option "a.b"`},
		{name: "bad value", text: "number = 'x'", err: `x.toml:1: number: "x": not a number`},
		{name: "bad duration", text: "\ntime-limit = 'soon'", err: `x.toml:2: time-limit: "soon": not a duration, as 500ms, 5s or 2m`},
		{name: "bad truth", text: "yes = 'maybe'", err: `x.toml:1: yes: "maybe": not true or false`},
		{name: "date", text: "name = 2026-01-01", err: "x.toml:1: name: neither text, a number, true or false, nor an array of these"},
		{name: "array", text: "name = ['a', 'b']", err: "x.toml:1: name: an array, where one value belongs"},
		{name: "arrays", text: "list = [['a']]", err: "x.toml:1: list: an array in an array"},
		{name: "no TOML", text: "number = 3\nname = 'x\n", err: "x.toml:2: literal strings cannot have new lines"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got settings
			f := got.flags()
			if err := f.Parse(c.args); err != nil {
				t.Fatal(err)
			}
			_, err := ApplyConfig(f, "x.toml", []byte(c.text), "command-line-only")
			if c.err != "" {
				if err == nil || err.Error() != c.err {
					t.Errorf("error %v, want %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzConfigured: any file gives at most an error.
func FuzzConfigured(f *testing.F) {
	f.Add([]byte("name = 'a'\nlist = [1, true]\n"))
	f.Add([]byte("[a]\nb.c = {d = 1}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var s settings
		where, err := ApplyConfig(s.flags(), "x.toml", text)
		if err == nil && len(where) > 6 {
			t.Errorf("%d flags of 6", len(where))
		}
	})
}
