package command

import (
	"errors"

	"github.com/spf13/pflag"
)

// once is a flag's text that may be given once.
type once struct {
	text  *string
	given bool
}

// OnceVar defines a flag for a text, as FlagSet.StringVar does. Given twice it is an error, instead of the last one being
// taken.
func OnceVar(f *pflag.FlagSet, to *string, name, usage string) {
	f.Var(&once{text: to}, name, usage)
}

// HideDefault leaves the default of a number out of the help, where it means that the flag is not given.
func HideDefault(f *pflag.FlagSet, name string) { f.Lookup(name).DefValue = "0" }

// Set implements pflag.Value.
func (o *once) Set(text string) error {
	if o.given {
		return errors.New("it is given twice: join them with &&")
	}
	*o.text, o.given = text, true
	return nil
}

// String implements pflag.Value.
func (o *once) String() string {
	if o.text == nil {
		return ""
	}
	return *o.text
}

// Type implements pflag.Value.
func (*once) Type() string { return "string" }
