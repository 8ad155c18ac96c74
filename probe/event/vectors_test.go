package event

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// vectors are what Linux 6.12 was seen to answer: see the file's own header.
//
//go:embed testdata/vectors.tsv
var vectorsTSV string

// syntaxTSV are the kernel's own syntax error tests, as observed there.
//
//go:embed testdata/syntax.tsv
var syntaxTSV string

// answer is what a write of a command to kprobe_events gives.
type answer struct {
	errno string // or OK
	text  string
	caret string
}

// exceptions are the vectors for which guestprobe answers otherwise, with what
// it answers and why.
var exceptions = map[string]struct {
	answer
	why string
}{
	// No BTF: the kernel that was observed has it. These are the kernel's
	// answers without, except for the errno of NAME, for which see
	// docs/definitions.md.
	"p vfs_read $arg10000":       {answer{"EINVAL", "Invalid argument number", "11"}, "the number of parameters is not known"},
	"p kfree $arg10":             {answer{"OK", "", ""}, "the number of parameters is not known"},
	"p vfs_read hoge":            {answer{"EINVAL", "BTF is not available or not supported", "11"}, "no BTF"},
	"r kfree $retval":            {answer{"OK", "", ""}, "return types are not known"},
	"p:ev27 vfs_read file":       {answer{"EINVAL", "BTF is not available or not supported", "16"}, "no BTF"},
	"p:ev35 vfs_read buf:string": {answer{"EINVAL", "BTF is not available or not supported", "16"}, "no BTF"},
	"p:ev37 vfs_read $arg*":      {answer{"EINVAL", "BTF is not available or not supported", "16"}, "no BTF"},
	"r:ev41 vfs_read $arg*":      {answer{"EINVAL", "BTF is not available or not supported", "16"}, "no BTF"},
	"p:ev39 vfs_read $arg1x":     {answer{"EINVAL", "Invalid $-variable specified", "16"}, "ENOENT is the errno of the BTF lookup"},
	"p:ev80 vfs_read u8(%di)":    {answer{"EINVAL", "BTF is not available or not supported", "16"}, "no BTF"},
	"p:ev69 vfs_read file:%pD":   {answer{"EOPNOTSUPP", "Guest profile is not available", "21"}, "struct file of the guest is not known"},
	"p:ev43 nomod:foo":           {answer{"EINVAL", "Invalid probed address or symbol", "7"}, "a bare guest has no modules that could be loaded later"},
	"p vfs_read +0(%ax)+10":      {answer{"EINVAL", "Dereference has text behind its closing brace", "18"}, "the kernel drops +10 silently; its own test lists this as bad"},
	"p:ev29 vfs_read file->f_path.dentry->d_name.name:string": {answer{"EINVAL", "BTF is not available or not supported", "16"}, "no BTF"},
}

// fakeKernel answers commands as kprobe_events does: with this package, and
// with a stand-in for the engine where the kernel registers the probe.
type fakeKernel struct{ defs []*Def }

// register stands in for the engine.
func register(d *Def, addr guest.GVA) error {
	refuse := func(code probe.Code, errno syscall.Errno) error {
		return d.Refused(fmt.Errorf("register: %w", &probe.Error{Code: code, Errno: errno, Text: "refused"}))
	}
	s, ok := kernel.Find(addr)
	switch {
	case ok && s.Kind == guest.SymData:
		return refuse(probe.CodeNotText, syscall.EINVAL)
	case ok && slices.Contains([]string{"get_kprobe", "do_int3", "__pfx_vfs_read", "ftrace_stub", "__switch_to"}, s.Name):
		return refuse(probe.CodeBlacklisted, syscall.EINVAL)
	case ok && addr != s.Addr && addr != s.Addr+20:
		return refuse(probe.CodeNotBoundary, syscall.EILSEQ)
	}
	return nil
}

func (k *fakeKernel) write(text string) error {
	if IsBlank(text) {
		return nil
	}
	if IsDeletion(text) {
		_, err := ParseDeletion(text)
		return err
	}
	d, err := ParseIn(text, kernel)
	if err != nil {
		return err
	}
	var same []*Def
	for _, h := range k.defs {
		if h.Name() == d.Name() {
			same = append(same, h)
		}
	}
	if err := d.Join(same); err != nil {
		return err
	}
	f, err := Compile(d, kernel, Options{Tasks: true})
	if err != nil {
		return err
	}
	if err := register(d, f.Addr()); err != nil {
		return err
	}
	k.defs = append(k.defs, d)
	return nil
}

// reply runs one command on a kernel that has what the vector presupposes.
func reply(t *testing.T, command string) (answer, *SyntaxError) {
	t.Helper()
	k := &fakeKernel{}
	if rest, ok := strings.CutPrefix(command, "p:kprobes/testevent kernel_clone "); ok && rest != "" || strings.HasPrefix(command, "r:kprobes/testevent") {
		if err := k.write(`p:kprobes/testevent kernel_clone abcd=\1`); err != nil {
			t.Fatal(err)
		}
	}
	err := k.write(command)
	if err == nil {
		return answer{errno: "OK"}, nil
	}
	var syntax *SyntaxError
	if !errors.As(err, &syntax) || !errors.Is(err, syntax.Errno) {
		t.Fatalf("%q: error %v is no *SyntaxError that wraps its errno", command, err)
	}
	return answer{probe.ErrnoName(syntax.Errno), syntax.Text, fmt.Sprint(syntax.Column)}, syntax
}

func TestKernelVectors(t *testing.T) {
	seen := map[string]bool{}
	for _, row := range strings.Split(strings.TrimSpace(vectorsTSV), "\n") {
		if strings.HasPrefix(row, "# ") {
			continue
		}
		col := strings.Split(row, "\t")
		command, want := col[1], answer{col[2], col[3], col[4]}
		if x, ok := exceptions[command]; ok {
			want, seen[command] = x.answer, true
		}
		got, err := reply(t, command)
		if want.errno != "OK" && want.text == "" {
			// The kernel logs nothing for these: ours to say what is wrong.
			if err == nil || got.errno != want.errno || err.Text == "" {
				t.Errorf("%q: got %+v, want %s and some text", command, got, want.errno)
			}
			continue
		}
		if got != want {
			t.Errorf("%q:\n got %+v\nwant %+v", command, got, want)
		}
	}
	for _, row := range strings.Split(strings.TrimSpace(syntaxTSV), "\n")[1:] {
		col := strings.Split(row, "\t")
		command, want := col[1], answer{col[3], Code(col[2]).Text(), col[0]}
		if x, ok := exceptions[command]; ok {
			want, seen[command] = x.answer, true
		}
		got, err := reply(t, command)
		if got != want || err != nil && exceptions[command].why == "" && err.Code != Code(col[2]) {
			t.Errorf("%q:\n got %+v\nwant %+v", command, got, want)
		}
	}
	for command := range exceptions {
		if !seen[command] {
			t.Errorf("exception %q is in no vector", command)
		}
	}
}
