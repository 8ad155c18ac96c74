package event

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/internal/testing/kerneltest"
)

// typedKernel has types too.
func typedKernel(t testing.TB) Scope {
	t.Helper()
	spec, err := types.Read(kerneltest.Types(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return Scope{Symbols: kernel, Types: types.New(spec, nil)}
}

func number(f Format, size int) Type { return Type{Format: f, Size: size} }

// TestTyped: what arguments become by the types of their function, and how they are
// listed.
func TestTyped(t *testing.T) {
	file, buf := FuncArg{1}, FuncArg{2}
	x := func(off int64, of Fetch) Fetch { return Deref{Offset: off, Of: of} }
	s64 := number(Signed, 8)
	bits := func(f Format, size, width, offset int) Type {
		return Type{Format: f, Size: size, Width: width, Offset: offset}
	}
	for _, tt := range []struct {
		text string
		want []Arg
	}{
		{"p vfs_read file count", []Arg{{"file", "file", file, x64}, {"count", "count", FuncArg{3}, number(Unsigned, 8)}}},
		{"p vfs_read a=count:x16 count:u32", []Arg{{"a", "count:x16", FuncArg{3}, number(Hex, 2)}, {"count", "count:u32", FuncArg{3}, number(Unsigned, 4)}}},
		{"p vfs_read $arg*", []Arg{{"file", "file", file, x64}, {"buf", "buf", buf, x64}, {"count", "count", FuncArg{3}, number(Unsigned, 8)}, {"pos", "pos", FuncArg{4}, x64}}},
		{"r vfs_read $arg2:x32 %ax $arg1 x=$arg1", []Arg{{"buf", "buf:x32", buf, number(Hex, 4)}, {"arg2", "%ax", Register{RegAX}, x64}, {"file", "file", file, x64}, {"x", "$arg1", file, x64}}},
		{"r vfs_read $retval got=$retval:x64", []Arg{{"arg1", "$retval", RetVal{}, s64}, {"got", "$retval:x64", RetVal{}, x64}}},
		{"r do_exit $retval:x8", nil}, // void
		{"r kernel_clone $retval", []Arg{{"arg1", "$retval", RetVal{}, number(Signed, 4)}}},
		{"r get_dentry $retval->d_name.len", []Arg{{"arg1", "$retval->d_name.len", x(0x24, RetVal{}), number(Unsigned, 4)}}},
		{"r ksys_read $retval", []Arg{{"arg1", "$retval", RetVal{}, s64}}},
		{"r huge $retval $arg3", []Arg{{"arg1", "$retval", RetVal{}, x64}, {"arg2", "$arg3", FuncArg{3}, x64}}}, // not known
		{"p 0xffffffff81001000 file", []Arg{{"file", "file", file, x64}}},
		{"p kernel_clone args->flags sig=args->exit_signal", []Arg{{"arg1", "args->flags", x(0, FuncArg{1}), number(Unsigned, 8)}, {"sig", "args->exit_signal", x(0x20, FuncArg{1}), number(Signed, 4)}}},
		{"p vfs_read a=file->f_path.dentry->d_name.name:string", []Arg{{"a", "file->f_path.dentry->d_name.name:string", x(0, x(0x28, x(0x48, file))), stringType}}},
		{"p vfs_read a=file->f_path.dentry->d_iname:string", []Arg{{"a", "file->f_path.dentry->d_iname:string", x(0x38, x(0x48, file)), stringType}}},
		{"p vfs_read a=file->f_path.dentry->d_iname:u8[4]", []Arg{{"a", "file->f_path.dentry->d_iname:u8[4]", x(0x38, x(0x48, file)), Type{Format: Unsigned, Size: 1, Count: 4}}}},
		{"p vfs_read a=file->f_path.dentry->d_name.len", []Arg{{"a", "file->f_path.dentry->d_name.len", x(0x24, x(0x48, file)), number(Unsigned, 4)}}},
		{"p vfs_read buf:string u=buf:ustring", []Arg{{"buf", "buf:string", x(0, buf), stringType}, {"u", "buf:ustring", Deref{User: true, Of: buf}, Type{Format: UString, Size: 4}}}},
		{"p vfs_read file:symstr file2=file:symbol", []Arg{{"file", "file:symstr", file, Type{Format: SymStr, Size: 4}}, {"file2", "file:symbol", file, number(Symbol, 8)}}},
		{"p vfs_read +8(file) +0(file->f_path.dentry):u8", []Arg{{"arg1", "+8(file)", x(8, file), x64}, {"arg2", "+0(file->f_path.dentry):u8", x(0, x(0x48, file)), number(Unsigned, 1)}}},
		{"p vfs_read file:%pD d=file->f_path.dentry:%pd", []Arg{{"arg1", "+0x0(+0x28(+0x48(file))):string", x(0, x(0x28, x(0x48, file))), stringType}, {"d", "+0x0(+0x28(file->f_path.dentry)):string", x(0, x(0x28, x(0x48, file))), stringType}}},
		{"p vfs_read a=file->kind b=file->small c=file->private_data d=file->ok e=file->letter f=file->short g=file->f_path", []Arg{
			{"a", "file->kind", x(0x58, file), number(Signed, 4)}, {"b", "file->small", x(0x5c, file), number(Signed, 1)}, {"c", "file->private_data", x(0x78, file), x64},
			{"d", "file->ok", x(0x7e, file), number(Unsigned, 1)}, {"e", "file->letter", x(0x7f, file), number(Unsigned, 1)}, {"f", "file->short", x(0x7c, file), number(Signed, 2)}, {"g", "file->f_path", x(0x40, file), x64},
		}},
		{"p vfs_read a=file->three b=file->low c=file->byte d=file->across e=file->wide f=file->flag g=file->three:x8", []Arg{
			{"a", "file->three", x(0x60, file), bits(Unsigned, 4, 3, 0)}, {"b", "file->low", x(0x60, file), bits(Signed, 4, 5, 3)}, {"c", "file->byte", x(0x60, file), bits(Unsigned, 4, 8, 8)},
			{"d", "file->across", x(0x61, file), bits(Unsigned, 8, 30, 6)}, {"e", "file->wide", x(0x68, file), bits(Unsigned, 8, 61, 3)}, {"f", "file->flag", x(0x63, file), bits(Unsigned, 1, 1, 7)},
			{"g", "file->three:x8", x(0x60, file), number(Hex, 1)},
		}},
		{"p odd_words first all both last", []Arg{{"first", "first", FuncArg{2}, number(Signed, 4)}, {"all", "all", FuncArg{7}, x64}, {"both", "both", FuncArg{3}, x64}, {"last", "last", FuncArg{12}, number(Signed, 4)}}},
	} {
		scope := typedKernel(t)
		if strings.Contains(tt.text, "odd_words") || strings.Contains(tt.text, "get_dentry") {
			scope.Symbols = renamed{kernel}
		}
		d, err := ParseIn(tt.text, scope)
		if tt.want == nil {
			var e *SyntaxError
			if !errors.As(err, &e) || e.Code != CodeNoRetval {
				t.Errorf("%q: got %v, want %s", tt.text, err, CodeNoRetval)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", tt.text, err)
			continue
		}
		if diff := cmp.Diff(tt.want, d.Args); diff != "" {
			t.Errorf("%q: -want +got\n%s", tt.text, diff)
		}
		again, err := ParseIn(d.String(), scope)
		if err != nil {
			t.Errorf("%q: listed as %q: %v", tt.text, d, err)
		} else if diff := cmp.Diff(d, again, sameDef); diff != "" {
			t.Errorf("%q: -once +twice\n%s", tt.text, diff)
		}
		if _, err := Compile(d, scope, Options{}); err != nil {
			t.Errorf("%q: compile: %v", tt.text, err)
		}
	}
}

// renamed has functions of kerneltest.Types in place of others.
type renamed struct{ fakeSymbols }

func (s renamed) Lookup(name string) (y guest.Symbol, err error) {
	old := map[string]string{"odd_words": "vfs_read", "get_dentry": "kfree"}[name]
	y, err = s.fakeSymbols.Lookup(old)
	y.Name = name
	return y, err
}

// TestTypedRefusals has the kernel's errors about types that the vectors omit.
func TestTypedRefusals(t *testing.T) {
	for _, tt := range []struct {
		text  string
		want  Code
		col   int
		errno syscall.Errno
	}{
		{"p vfs_read count->x", CodeNoPtrStrct, 18, syscall.EINVAL},
		{"p vfs_read a=file->f_mode->x", CodeNoPtrStrct, 27, syscall.EINVAL},
		{"p vfs_read buf->x", CodeBadBTFTID, 16, syscall.EINVAL},
		{"p vfs_read file->f_mode.x", CodeBadBTFTID, 24, syscall.EINVAL},
		{"p vfs_read file->private_data->x", CodeBadBTFTID, 31, syscall.EINVAL},
		{"p vfs_read file->f_path.mnt->x", CodeBadBTFTID, 29, syscall.EINVAL}, // declared only
		{"p vfs_read file->nothing", CodeNoBTFField, 17, syscall.ENOENT},
		{"p vfs_read file->f_path.nothing", CodeNoBTFField, 24, syscall.ENOENT},
		{"p vfs_read file->", CodeNoBTFField, 17, syscall.ENOENT},
		{"p vfs_read file->f_path-dentry", CodeBadHyphen, 23, syscall.EINVAL},
		{"p vfs_read file->beyond", CodeBadBitfield, 17, syscall.EINVAL},
		{"p vfs_read count:string", CodeBadType4Str, 11, syscall.EINVAL},
		{"p vfs_read file->f_path:string", CodeBadType4Str, 17, syscall.EINVAL},
		{"p vfs_read file:u8[2]", CodeBadString, 16, syscall.EINVAL},
		{"p vfs_read file:%pX", CodeBadType, 16, syscall.EINVAL},
		{"p vfs_read a=%di file file", CodeUsedArgName, 22, syscall.EINVAL},
		{"p vfs_read file $arg1", CodeUsedArgName, 16, syscall.EINVAL},
		{"p vfs_read $arg5", CodeNoBTFArg, 11, syscall.ENOENT},
		{"p vfs_read x=$arg5", "", 0, 0},
		{"p vfs_read $arg0:u8", CodeBadArgNum, 11, syscall.EINVAL},
		{"p vfs_read $arg99999999999999999999", CodeBadVar, 11, syscall.ENOENT},
		{"p vfs_read $arg* nothing", CodeNoBTFArg, 25, syscall.ENOENT}, // its number is the one after the expansion
		{"r vfs_read $retvalx", CodeNoBTFArg, 11, syscall.ENOENT},
		{"r vfs_read $retval.x", CodeNosupDatArg, 19, syscall.EOPNOTSUPP},
		{"r huge $retval->x", CodeNoBTFEntry, 16, syscall.ENOENT},
		{"p huge file", CodeNoBTFEntry, 7, syscall.ENOENT},
		{"p huge $arg*", CodeNosupBTFArg, 7, syscall.EOPNOTSUPP},
		{"p vfs_read+20 file", CodeNosupBTFArg, 14, syscall.EINVAL},
		{"w @_sdata file", CodeNosupBTFArg, 10, syscall.EINVAL},
		{"p vfs_read +0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(file->f_path))))))))))))", "", 0, 0},
		{"p vfs_read +0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(file->f_path))))))))))))))", CodeArgTooLong, 11, syscall.E2BIG},
		{"t:x sched_switch", CodeNoTracepoint, 4, syscall.ENOENT},
		{"t:x sched:sched_switch", CodeBadTPName, 9, syscall.EINVAL},
		{"t4:x sched_switch", CodeBadMaxactType, 1, syscall.EINVAL},
		{"t", CodeNoPlace, 2, syscall.EINVAL},
	} {
		_, err := ParseIn(tt.text, typedKernel(t))
		var e *SyntaxError
		if err != nil && !errors.As(err, &e) {
			t.Fatalf("%q: %v", tt.text, err)
		}
		if e == nil {
			e = &SyntaxError{}
		}
		if e.Code != tt.want || e.Column != tt.col || e.Errno != tt.errno {
			t.Errorf("%q: got %q at %d, %v, want %q at %d, %v", tt.text, e.Code, e.Column, e.Errno, tt.want, tt.col, tt.errno)
		}
	}
}

// TestLongNames: $arg* of a function whose parameters have long names is refused, as by
// the kernel.
func TestLongNames(t *testing.T) {
	scope := typedKernel(t)
	text := "p vfs_read"
	for i := range 25 {
		text += fmt.Sprintf(" $arg1:u%d", 8<<(i%4))
	}
	var e *SyntaxError
	// Each takes "file:u8" and the like with a NUL: 8 to 9 bytes of 128.
	if _, err := ParseIn(text, scope); !errors.As(err, &e) || e.Code != CodeArgs2Long || e.Errno != syscall.E2BIG {
		t.Errorf("got %v, want %s", err, CodeArgs2Long)
	}
}

func FuzzTyped(f *testing.F) {
	for _, args := range []string{"$arg*", "file->f_path.dentry->d_name.name:string", "count buf:ustring file:%pD", "$retval->x", "+0(file->low):u8[3]"} {
		f.Add("p:e vfs_read " + args)
		f.Add("r:e vfs_read " + args)
	}
	f.Fuzz(func(t *testing.T, text string) {
		scope := typedKernel(t)
		d, err := ParseIn(text, scope)
		if err != nil {
			checkError(t, text, err)
			return
		}
		if list := d.String(); len(list) <= maxCommand {
			again, err := ParseIn(list, scope)
			if err != nil {
				t.Fatalf("%q: listing %q: %v", text, list, err)
			}
			if diff := cmp.Diff(d, again, sameDef); diff != "" {
				t.Errorf("%q: the listing is another definition: %s", text, diff)
			}
		}
		if _, err := Compile(d, scope, Options{Tasks: true}); err != nil {
			checkError(t, text, err)
		}
	})
}
