package script

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
)

// FileTypes has none: see fileTarget.
func (fakeTarget) FileTypes(string) Types { return nil }

// fileTarget is a guest with /bin/prog, whose struct file is not the kernel's. /lib/c++/libm.so.6 has no debug information.
type fileTarget struct{ fakeTarget }

// programTypes are the types of /bin/prog.
type programTypes map[string]btf.Type

func (p programTypes) TypeByName(tag types.Tag, name string) btf.Type {
	return p[strings.TrimSpace(string(tag)+" "+name)]
}
func (p programTypes) Names(types.Tag) []string { return []string{"file"} }

func (p programTypes) Enumerator(name string) (uint64, *btf.Enum, bool) {
	return 77, &btf.Enum{Name: "color", Size: 4, Values: []btf.EnumValue{{Name: "green", Value: 77}}}, name == "green"
}

var ownTypes = func() programTypes {
	char, number := &btf.Int{Name: "char", Size: 1, Encoding: btf.Signed}, &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	file := &btf.Struct{Name: "file", Size: 40}
	file.Members = []btf.Member{
		{Name: "id", Type: number},
		{Name: "name", Type: &btf.Array{Index: number, Type: char, Nelems: 8}, Offset: 32},
		{Name: "of_three", Type: &btf.Array{Index: number, Type: number, Nelems: 3}, Offset: 96},
		{Name: "two", Type: &btf.Array{Index: number, Type: &btf.Pointer{Target: file}, Nelems: 2}, Offset: 192},
	}
	return programTypes{"struct file": file, "file_t": &btf.Typedef{Name: "file_t", Type: file}, "struct stack_info": &btf.Struct{Name: "stack_info", Size: 1}}
}()

func (f fileTarget) FileTypes(path string) Types {
	if path == "/bin/prog" {
		return ownTypes
	}
	return nil
}

func (f fileTarget) FindFile(name string) string {
	return map[string]string{"prog": "/bin/prog"}[name]
}

func (f fileTarget) Func(name string) (*btf.FuncProto, string) {
	switch {
	case name == "/bin/prog:work" || name == "/bin/prog:worker":
		return &btf.FuncProto{Return: ownTypes["struct file"].(*btf.Struct).Members[0].Type, Params: []btf.FuncParam{
			{Name: "f", Type: &btf.Pointer{Target: ownTypes["struct file"]}}, {Name: "c", Type: &btf.Int{Name: "char", Size: 1, Encoding: btf.Signed}},
		}}, ""
	case strings.HasPrefix(name, "/"):
		return nil, "no debug information (build with -g)"
	}
	return f.fakeTarget.Func(name)
}

func (f fileTarget) Match(pattern string, _, _ bool, _ int) ([]string, map[string]int) {
	if pattern == "/bin/prog:work*" {
		return []string{"/bin/prog:work", "/bin/prog:worker"}, nil
	}
	return nil, nil
}

func (f fileTarget) Lookup(name string) (uint64, bool, string) {
	if strings.HasPrefix(name, "/") {
		return 0x4000000000001000, true, ""
	}
	return f.fakeTarget.Lookup(name)
}

func (f fileTarget) User(name string) bool {
	return strings.HasPrefix(name, "/") || f.fakeTarget.User(name)
}

func (f fileTarget) Source(place string) ([]string, error) {
	switch place {
	case "/bin/prog@prog.c:22":
		return []string{"/bin/prog:work"}, nil
	case "/bin/prog@src/prog.c:30:7", "/lib/c++/prog@a.c:30:7":
		return []string{"/bin/prog:work+8", "/lib/c++/prog:0x1010"}, nil
	}
	return f.fakeTarget.Source(place)
}

// TestFileParameters: in probes of files with debug information, parameters and types are the file's.
func TestFileParameters(t *testing.T) {
	text := "\x2a\x00\x00\x00hello\x00\x00\x00" + "\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00" + "\x00\x90\x00\x00\x00\x00\x00\x00" + "\x00\x80\x00\x00\x00\x00\x00\x00"
	work := hit{fn: "/bin/prog:work", args: [6]uint64{0x8000, 120}, memory: map[uint64]string{0x8000: text, 0x9000: "\x07"}}
	back := work
	back.ret, back.retval = true, 0xffffffff
	hits := []hit{work, back}
	for script, want := range map[string]string{
		`uprobe:/bin/prog:work { printf("%c %d\n", args.c, args->f->id); }`:                                          "x 42\n",
		`uprobe:prog:work { printf("%s %d\n", args.f.name, args.f.of_three[2]); print(args.f.of_three); }`:           "hello 3\n[1,2,3]\n",
		`macro file_t(x) { x + 1 } uprobe:/bin/prog:work { print((file_t(41))); }`:                                   "42\n",
		`uprobe:/bin/prog:work { print(args); }`:                                                                     "{ .f = 0x8000, .c = 120 }\n",
		`uprobe:/bin/prog:work { @ = args; print(@.c); clear(@); }`:                                                  "120\n",
		`uprobe:/bin/prog:work { @[args] = 1; }`:                                                                     "\n\n@[{ .f = 0x8000, .c = 120 }]: 1\n",
		`uprobe:/bin/prog:work { $a = (1, "x", args); print($a); }`:                                                  "(1, x, { .f = 0x8000, .c = 120 })\n",
		`uprobe:/bin/prog:work { $args = args; print((a=1, c=(args, (y=$args.c)))); }`:                               "{ .a = 1, .c = ({ .f = 0x8000, .c = 120 }, { .y = 120 }) }\n",
		`uprobe:/bin/prog:work { printf("%d %d\n", ((struct file *)arg0)->id, ((file_t *)arg0)->id); }`:              "42 42\n",
		`uprobe:/bin/prog:work { let $x: struct file *[2] = args.f->two; printf("%d %d\n", $x[0]->id, $x[1]->id); }`: "7 42\n",
		`uprobe:/bin/prog:work { printf("%d %d\n", sizeof(struct file), green); }`:                                   "40 77\n",
		`struct file { char first; } uprobe:/bin/prog:work { printf("%c\n", ((struct file *)arg0)->first); }`:        "*\n",
		`uretprobe:/bin/prog:work { printf("%d %c %llu\n", args.f->id, args.c, retval); }`:                           "42 x 4294967295\n",
		`uprobe:/bin/prog:work* { printf("%c %s\n", args.c, func); }`:                                                "x work\n",
		`uprobe:/bin/prog@prog.c:22 { printf("%c %s %s\n", args.c, func, probe); }`:                                  "x work uprobe:/bin/prog@prog.c:22\n",
	} {
		r, err := runOn(t, fileTarget{target}, script, nil, false, 0, hits...)
		if got := strings.TrimRight(r.out, "\n") + "\n"; err != nil || r.warnings != "" || got != want {
			t.Errorf("%s\nprints %q, want %q; %q, %v", script, got, want, r.warnings, err)
		}
	}
}

// TestFilePlaces: places in the source of a file, and errors about files.
func TestFilePlaces(t *testing.T) {
	for _, text := range []string{"uprobe:/bin/prog@src/prog.c:30:7 { @ = count(); }", "u:prog@src/prog.c:30:7 { @ = count(); }", "uprobe:/lib/c++/prog@a.c:30:7 { @ = count(); }"} {
		s, err := Compile(text, fileTarget{target}, Options{CPUs: 1})
		if err != nil || s.Probes != 2 || s.Object.Programs[0].AttachTo != "/bin/prog:work+8" || s.Object.Programs[1].AttachTo != "/lib/c++/prog:0x1010" {
			t.Errorf("%s: %+v, %v", text, s, err)
		}
	}
	for text, want := range map[string]string{
		`uprobe:/bin/prog@prog.c:22 { print(reg("pc")); }`:                                     "",
		`uprobe:/lib/c++/libm.so.6:sin { print(arg0); }`:                                       "",
		`uprobe:/opt/a@1/prog:main { print(arg0); }`:                                           "",
		`uprobe:/bin/prog:work { print(curtask->pid); }`:                                       "of type 'uint64'",
		`uprobe:/lib/c++/libm.so.6:sin { print(args.x); }`:                                     "parameters of /lib/c++/libm.so.6:sin are not known: no debug information (build with -g)",
		`uprobe:/lib/c++/libm.so.6:sin { print(args); }`:                                       "parameters of /lib/c++/libm.so.6:sin are not known: no debug information (build with -g)",
		`uprobe:/bin/prog:work+4 { print(args.c); }`:                                           "parameters are known at a function's entry and return only, not at /bin/prog:work+4",
		`uprobe:/bin/prog@src/prog.c:30:7 { print(args.c); }`:                                  "parameters are known at a function's entry and return only, not at /bin/prog:work+8",
		`uprobe:/bin/prog:0x10 { print(args.c); }`:                                             "parameters are known at a function's entry and return only, not at /bin/prog:0x10",
		`uprobe:/bin/prog:work { print(args.d); }`:                                             "Can't find function parameter d",
		`uprobe:/bin/prog:work { print(((struct fil *)arg0)->id); }`:                           "did you mean struct file?",
		`kprobe:vfs_read { print(((struct file *)arg0)->of_three); }`:                          "does not contain a field named 'of_three'",
		`uprobe:/bin/prog:work { } kprobe:vfs_read { print(green); }`:                          "Unknown identifier: 'green'",
		`uprobe:/bin/prog@prog.c { }`:                                                          "want FILE@SOURCE:LINE",
		`uprobe:/bin/prog@prog.c:0 { }`:                                                        "want FILE@SOURCE:LINE",
		`uprobe:/bin/prog@:3 { }`:                                                              "want FILE@SOURCE:LINE",
		`uprobe:./prog@prog.c:3 { }`:                                                           "want the file's path in the guest",
		`uprobe:*@prog.c:3 { }`:                                                                "a place in the source is in one file",
		`uprobe:none@prog.c:3 { }`:                                                             "none is no file of the guest",
		`uprobe:/bin/prog@prog.c:23 { }`:                                                       "prog.c:23 has no code",
		`uretprobe:/bin/prog@prog.c:22 { }`:                                                    "a place in the source has no return",
		`kprobe:/bin/prog@prog.c:22 { }`:                                                       "it is of the guest's kernel",
		`uprobe:/bin/prog:work { @x = args.f; } kprobe:vfs_read { @x = (struct file *)arg0; }`: "@x",
	} {
		_, err := Compile(text, fileTarget{target}, Options{CPUs: 1})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestCheckFiles: without a guest, types in probes of files may be the file's.
func TestCheckFiles(t *testing.T) {
	for text, want := range map[string]string{
		`uprobe:/bin/prog:work { print(((struct own *)arg0)->a); }`:                     "",
		`uprobe:prog:work /((own_t *)arg0)->a > 1/ { }`:                                 "",
		`uprobe:main { print(((struct own *)arg0)->a); }`:                               "Cannot resolve unknown type",
		`kprobe:vfs_read { print(((struct own *)arg0)->a); } uprobe:/bin/prog:work { }`: "Cannot resolve unknown type",
		`uprobe:/bin/prog:work { print(((struct file *)arg0)->a; }`:                     "syntax error",
	} {
		err := Check("test", text, nil, nil, kernelTypes)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// FileVariable knows variables of /bin/prog, which processes have from 0x3000 after main on.
func (f fakeTarget) FileVariable(path, name string) (move, size uint64, err error) {
	size, ok := map[string]uint64{"byte": 1, "half": 2, "word": 4, "long": 8, "array": 40, "unsized": 0}[name]
	if path != "/bin/prog" || !ok {
		return 0, 0, errors.New(path + " has no symbol")
	}
	return f["main"] + 0x3000 + 0x400*size, size, nil
}

// TestFileVariables: uaddr is the address in the process that hits the probe, a pointer to a number of the variable's size.
func TestFileVariables(t *testing.T) {
	const base = mapped - 7 // where the process has main
	memory := map[uint64]string{base + 0x3400: "\x81\xff", base + 0x3800: "\x34\x92\xff", base + 0x4000: "\x78\x56\x34\x92\xff", base + 0x5000: "\x01\x02\x03\x04\x05\x06\x07\x08", base + 0xd000: "\x09\x00\x00\x00\x00\x00\x00\x00"}
	at := hit{fn: "/bin/prog:work", ip: mapped, memory: memory}
	r, err := runOn(t, fileTarget{target}, `uprobe:/bin/prog:work { printf("%x %x %x %lx %d %lx\n", *uaddr("byte"), *uaddr("half"), *uaddr("word"), *uaddr("long"), *uaddr("array"), (uint64)uaddr("unsized")); }`, nil, false, 0, at)
	if want := "81 9234 92345678 807060504030201 9 7f8000004000\n"; err != nil || strings.TrimRight(r.out, "\n")+"\n" != want || r.warnings != "" {
		t.Errorf("%q, %q, %v, want %q", r.out, r.warnings, err, want)
	}
	// Of the image's own symbols it is a number, as before.
	r, err = runScript(t, `uprobe:main { print(uaddr("main")); }`, nil, false, 0, hit{fn: "main"})
	if want := fmt.Sprint(target["main"]); err != nil || strings.TrimSpace(r.out) != want {
		t.Errorf("%q, %v, want %s", r.out, err, want)
	}
	for text, want := range map[string]string{
		`uprobe:/bin/prog:work { print(uaddr("none")); }`:                         "Failed to resolve user symbol: none",
		`uretprobe:/bin/prog:work { print(uaddr("word")); }`:                      "uaddr() can not be used with 'uretprobe' probes of a file",
		`uprobe:/bin/prog:work, uprobe:/bin/other:work { print(uaddr("word")); }`: "this probe is in several files",
	} {
		if _, err := Compile(text, fileTarget{target}, Options{CPUs: 1, Files: true}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
